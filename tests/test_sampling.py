"""Distributions and the random source."""

import pytest
import scipy.stats
import torch
import transformers as t
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Table, model

from specdemo.engine import sampling as sampling_module
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.draft_model import ModelDraft
from specdemo.engine.drafters import NgramDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness, distribution, log_probs
from specdemo.engine.types import Sampling, Task

CPU = torch.device("cpu")


@given(
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 10_000),
    width=st.integers(1, 50),
)
@settings(max_examples=150, deadline=None)
def test_distributions_are_those_of_transformers(temperature, top_k, top_p, seed, width):
    logits = torch.randn(3, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    expected = t.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = t.TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = t.TopPLogitsWarper(top_p)(None, expected)
    got = distribution(logits, Sampling(temperature, top_k, top_p))
    torch.testing.assert_close(got, expected.softmax(-1), atol=1e-12, rtol=1e-9)


def test_top_p_looks_further_where_the_first_candidates_do_not_reach_it(monkeypatch):
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = distribution(logits, Sampling(1.0, top_p=0.95))
    monkeypatch.setattr(sampling_module, "_CANDIDATES", 4)
    torch.testing.assert_close(distribution(logits, Sampling(1.0, top_p=0.95)), whole)


def test_temperature_zero_is_refused_rather_than_divided_by():
    with pytest.raises(ValueError, match="argmax"):
        distribution(torch.zeros(1, 3), Sampling(0.0))


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}]
)
def test_impossible_sampling_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_bf16_logits_are_scored_in_float32():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert log_probs(logits, [1, 2, 3, 4]).dtype is torch.float32
    assert distribution(logits, Sampling(1.0)).dtype is torch.float32


def test_uniform_never_reaches_one():
    rng = Randomness(0, CPU)
    draws = [rng.uniform() for _ in range(2000)]
    assert 0 <= min(draws) < 0.01 and 0.99 < max(draws) < 1


# Two tokens jointly, 4,000 answers a path; the expected counts come from the target's own distributions.
@pytest.mark.parametrize("kind", ["plain", "chain", "ngram"])
def test_joint_frequencies_of_two_tokens_fit_the_target(kind):
    settings_, prompt, answers = Sampling(0.9, top_p=0.95), (0, 1, 2, 0, 1), 4000
    job = Task(prompt, 3, sampling=settings_)
    rng = Randomness(11, CPU)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(answers):
        target = Table(3, 1)
        if kind == "plain":
            steps = plain(target, job, rng)
        else:
            drafter = (
                ModelDraft(Table(3, 2), 3, 3, settings_, rng)
                if kind == "chain"
                else NgramDraft(NgramModel(NgramTable()))
            )
            steps = speculative(target, drafter, job, 2, rng)
        pair = tuple(token.id for step in steps for token in step.tokens)[1:]
        counts[pair] = counts.get(pair, 0) + 1
    expected = _joint(prompt, settings_)
    assert counts.keys() <= expected.keys()
    cells = sorted(expected)
    fit = scipy.stats.chisquare([counts.get(c, 0) for c in cells], [expected[c] * answers for c in cells])
    assert fit.pvalue > 1e-3


def _joint(prompt, settings_):
    """Probability of the second and third token, over all first ones."""
    table = Table(3, 1)

    def p(prefix):
        return distribution(table.logits(prefix)[None], settings_)[0].tolist()

    joint: dict[tuple[int, int], float] = {}
    for a, pa in enumerate(p(prompt)):
        for b, pb in enumerate(p((*prompt, a))):
            for c, pc in enumerate(p((*prompt, a, b))):
                if pa * pb * pc:
                    joint[b, c] = joint.get((b, c), 0) + pa * pb * pc
    return joint


def test_sampling_on_a_real_architecture_draws_only_what_the_cuts_leave():
    target, cuts = model("gemma2"), Sampling(1.0, top_k=2)
    job = Task((3, 4, 5), 12, sampling=cuts)
    draft = ModelDraft(CachedModel(model("gemma2", seed=1)), 32, 32, cuts, Randomness(3, CPU))
    ids = [3, 4, 5]
    for step in speculative(CachedModel(target), draft, job, 3, Randomness(3, CPU)):
        for token in step.tokens:
            with torch.inference_mode():
                allowed = target(torch.tensor([ids])).logits[0, -1].topk(2).indices.tolist()
            assert token.id in allowed
            ids.append(token.id)
