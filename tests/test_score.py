"""Draft, then score: the draft's own text, scored by the target, and marked as what it is."""

import pytest
import torch
from tiny import model

from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain
from specdemo.engine.sampling import Randomness
from specdemo.engine.score import BLOCK, draft_then_score
from specdemo.engine.types import Finish, Origin, Sampling, Task
from specdemo.measure.metrics import Tally, lossless
from specdemo.measure.scoreboard import sentence

PROMPT = (3, 4, 5, 3, 4, 5)


def rng():
    return Randomness(7, torch.device("cpu"))


def run(task, target=None, draft=None, shared=32):
    target, draft = target or model(), draft or model(seed=1)
    return list(draft_then_score(CachedModel(target), CachedModel(draft), shared, task, rng()))


def ids(steps):
    return [token.id for step in steps for token in step.tokens]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_k=5), Sampling(repetition_penalty=1.3)])
@pytest.mark.parametrize("tokens", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 80])
def test_the_text_is_the_drafts_own_whatever_the_target_would_say(tokens, sampling):
    task = Task(PROMPT, tokens, sampling=sampling)
    steps = run(task)
    assert ids(steps) == ids(plain(CachedModel(model(seed=1)), task, rng()))
    if tokens > 20:
        assert ids(steps) != ids(plain(CachedModel(model()), task, rng()))
    assert {token.origin for step in steps for token in step.tokens} <= {Origin.UNVERIFIED}
    assert not any(step.nodes for step in steps)


def test_scores_and_margins_are_the_targets_at_every_position():
    target = model()
    steps = run(Task(PROMPT, 70), target)
    with torch.inference_mode():
        logits = target(torch.tensor([[*PROMPT, *ids(steps)]])).logits[0]
    tokens = [token for step in steps for token in step.tokens]
    for token, row in zip(tokens, logits[len(PROMPT) - 1 :], strict=False):
        best = row.topk(2).values
        assert token.logprob == pytest.approx(float(row.log_softmax(-1)[token.id]), abs=1e-4)
        assert token.margin == pytest.approx(float(best[0] - best[1]), abs=1e-3)


def test_it_ends_where_the_drafts_text_ends():
    whole = ids(run(Task(PROMPT, 60)))
    end = next(i for i in range(40, 60) if whole[i] not in whole[:i])
    steps = run(Task(PROMPT, 60, eos=frozenset({whole[end]})))
    assert ids(steps) == whole[: end + 1] and steps[-1].finish is Finish.EOS


def test_the_verdict_is_lossy_even_where_the_texts_are_the_same():
    target, task, tallies = model(), Task(PROMPT, 10), (Tally(), Tally())
    for step in plain(CachedModel(target), task, rng()):
        tallies[0].add(step)
    for step in run(task, target, target):
        tallies[1].add(step)
    assert tallies[0].token_ids == tallies[1].token_ids
    assert lossless(*tallies, greedy=True).verdict == lossless(*tallies, greedy=False).verdict == "lossy"
    assert "did not verify" in sentence(lossless(*tallies, greedy=True), "fp32")
    assert tallies[1].origins[Origin.UNVERIFIED] == 10 and tallies[1].acceptance_rate is None


def test_a_draft_of_fewer_ids_reads_unknown_ones_as_its_last():
    steps = run(Task((31, 30, 5), 12), draft=model(seed=1, vocab_size=24), shared=20)
    assert len(ids(steps)) == 12 and max(ids(steps)) < 20
