"""Evaluating drafters: the simulation is the real loop, the summaries are what was measured."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.draft.evaluate import Row, simulate, summaries
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.drafters import NgramDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Task

TARGET = model("llama")


@given(
    prompt=st.lists(st.integers(0, 31), min_size=1, max_size=20),
    tokens=st.integers(1, 25),
    budget=st.integers(1, 9),
)
def test_the_simulation_takes_the_steps_that_the_real_loop_takes(prompt, tokens, budget):
    rng, task = Randomness(0, torch.device("cpu")), Task(tuple(prompt), tokens)
    answer = [token.id for step in plain(CachedModel(TARGET), task, rng) for token in step.tokens]
    drafter = NgramDraft(NgramModel(NgramTable()))
    steps = list(speculative(CachedModel(TARGET), drafter, task, budget, rng))
    assert simulate(drafter, [([*prompt, *answer], len(prompt))], budget) == (tokens, len(steps))


def row(id, mode, seconds, steps=4, ids=(1, 2), depths=(2, 1)):
    return Row(id, "kind", mode, 8, steps, 12, seconds, seconds / 10, depths, ids)


def test_a_summary_compares_each_prompt_with_its_own_plain_answer():
    rows = [row("a", "plain", 4.0), row("a", "m", 2.0), row("b", "plain", 9.0), row("b", "m", 1.0, 2, (3,), (1,))]
    (found,) = summaries(rows)
    assert found.speed_up == pytest.approx((2 * 9) ** 0.5) and found.lowest == 2
    assert found.tokens_per_step == (8 / 4 + 8 / 2) / 2 and found.drafted_per_step == 24 / 6
    assert found.positions == (3 / 6, 1 / 6) and (found.identical, found.prompts) == (1, 2)
    assert found.draft_share == pytest.approx(0.1)
