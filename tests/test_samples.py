"""What a draft is trained on is the file of answers, whole: no row left out, no state of another."""

import os
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
import typer
from tiny import model

from specdemo.draft import inputs
from specdemo.draft.answers import RAW, Row, write_states
from specdemo.draft.samples import samples

OPENING = [1, 2, 3]
ROWS = [Row("any", 2, [5, 6, 7, 8], greedy=True), Row(RAW, 0, [9, 4, 7], greedy=False)]


@pytest.fixture
def target():
    return model("llama", tie_word_embeddings=True)


@pytest.fixture
def answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(row.json() + "\n" for row in ROWS))
    return path


@torch.inference_mode()
def states_of(target, ids):
    return target(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, :-1]


def test_every_row_comes_with_the_targets_states(target, answers):
    opening = states_of(target, [*OPENING, 0])
    assert list(write_states(answers, target, OPENING)) == [1, 2]
    found = samples(answers, OPENING, opening.half())
    assert [sample.ids.tolist() for sample in found] == [OPENING + ROWS[0].ids, ROWS[1].ids]
    for sample in found:
        torch.testing.assert_close(sample.states.float(), states_of(target, sample.ids.tolist()), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("wrong", [None, -2, 2])
def test_answers_without_exactly_their_states_are_refused_until_these_are_added(target, answers, wrong):
    opening = states_of(target, [*OPENING, 0]).half()
    if wrong is None:
        list(islice(write_states(answers, target, OPENING), 1))
    else:
        list(write_states(answers, target, OPENING))
        states = answers.with_suffix(".states")
        os.truncate(states, states.stat().st_size + wrong)
    with pytest.raises(ValueError, match="draft states"):
        samples(answers, OPENING, opening)
    list(write_states(answers, target, OPENING))
    assert len(samples(answers, OPENING, opening)) == len(ROWS)


def test_answers_that_have_no_states_at_all_are_refused(answers):
    with pytest.raises(ValueError, match="has 0 bytes in place of"):
        samples(answers, OPENING, torch.zeros(3, 8).half())


def test_answers_too_few_to_hold_some_out_are_refused(monkeypatch, tmp_path):
    """Else a head that was never trained would take the place of the one that is shipped."""
    monkeypatch.setattr("specdemo.draft.answers.opening_of", lambda _: ([1, 2], 2))
    monkeypatch.setattr("specdemo.draft.samples.samples", lambda *_: iter("abc"))
    loaded = SimpleNamespace(target=model(), tokenizer=None)
    with pytest.raises(typer.BadParameter, match="3 sequences, and 3 are held out"):
        inputs.split(loaded, [tmp_path], 3, 1)
    trained, judged = inputs.split(loaded, [tmp_path], 1, 1)
    assert len(trained) == 2 and len(judged) == 1
