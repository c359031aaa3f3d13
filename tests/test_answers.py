"""The target's own answers, written many at once: each is what the target alone would say, with its true states."""

import json
import os

import pytest
import torch

from specdemo.draft.answers import RAW, read, write
from specdemo.draft.writer import Writer
from specdemo.models.load import load
from specdemo.models.pairs import PAIRS

pytestmark = pytest.mark.model
WIDTH = 576  # of the embedded target's states


@pytest.fixture(scope="module")
def loaded():
    return load(PAIRS["embedded"], "fp32")


@pytest.fixture(scope="module")
def rows(loaded):
    """The first rows to be finished, one without a template among them."""
    found, writer = [], Writer(loaded.target, loaded.tokenizer, 12, seed=3)
    for row in writer:
        found.append(row)
        if {True, False} <= {row.greedy for row in found} and RAW in {row.kind for row in found}:
            return writer, found


@torch.inference_mode()
def test_greedy_answers_and_states_are_those_of_the_target_alone(rows, loaded):
    writer, found = rows
    for row in found:
        opening = [] if row.kind == RAW else writer.opening
        fresh = loaded.target(torch.tensor([opening + row.ids]), output_hidden_states=True)
        states = fresh.hidden_states[-1][0, len(opening) : -1]
        torch.testing.assert_close(row.states.float(), states, atol=0.02, rtol=0.01)
        if row.greedy:
            said = fresh.logits[0, len(opening) + row.message - 1 : -1].argmax(-1).tolist()
            assert said == row.ids[row.message :]


def test_a_killed_run_goes_on_where_the_last_whole_row_ended(rows, tmp_path):
    writer, found = rows
    path = tmp_path / "answers.jsonl"
    counts = list(write(path, found, WIDTH, len(writer.turn), 10**9, keep_states=True))
    assert counts[-1] == sum(len(row.ids) - row.message for row in found)
    whole = path.read_bytes(), path.with_suffix(".states").read_bytes()
    path.write_bytes(whole[0] + b'{"k":"any","u":3')
    with path.with_suffix(".states").open("ab") as states:
        states.write(b"\0" * 99)
    assert next(iter(write(path, found, WIDTH, len(writer.turn), 10**9, keep_states=True))) == counts[-1]
    assert (path.read_bytes(), path.with_suffix(".states").read_bytes()) == whole
    assert [row.ids for row in read(path)] == [row.ids for row in found]
    os.truncate(path.with_suffix(".states"), 10)
    with pytest.raises(ValueError, match="fewer states"):
        next(iter(write(path, found, WIDTH, len(writer.turn), 10**9, keep_states=True)))


def test_messages_that_evaluate_a_draft_are_left_out(rows, tmp_path):
    writer, found = rows
    for row in (next(row for row in found if (row.kind == RAW) == raw) for raw in (False, True)):
        _check_left_out(row, found, writer, tmp_path / row.kind)


def _check_left_out(row, found, writer, folder):
    """Text without a template has no message: an excluded prompt is then how it begins, whoever wrote that."""
    folder.mkdir()
    excluded = {tuple(row.ids[: row.message + 4 if row.kind == RAW else row.message - len(writer.turn)])}
    list(write(folder / "answers.jsonl", found, WIDTH, len(writer.turn), 10**9, excluded))
    kept = [json.loads(line)["s"] for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert row.ids not in kept and len(kept) == len(found) - 1
