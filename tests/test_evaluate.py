"""Evaluating drafters without a model: the simulation is the real loop."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.config import LENGTHS
from specdemo.draft.evaluate import PACED, Prices, _drafter, paces, simulate
from specdemo.draft.train import new_head
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
    nodes = sum(len(step.nodes) for step in steps)
    assert simulate(drafter, [([*prompt, *answer], len(prompt))], budget) == (tokens, len(steps), nodes)


@pytest.mark.parametrize("mode", PACED)
def test_the_embedded_pairs_drafters_take_the_steps_of_the_real_loop_and_pay_for_all_of_them(mode):
    target = model("llama", tie_word_embeddings=True)
    loaded = SimpleNamespace(target=target, head=new_head(target, list(range(32))).eval(), ngram=NgramTable())
    rng, task, prices = Randomness(0, torch.device("cpu")), Task((3, 4, 5, 3, 4, 5, 3), 30), Prices(row=0.01, head=0.02)
    found = paces(loaded, task, [mode], prices)[mode]
    cached = CachedModel(target)
    drafter, head = _drafter(loaded, cached, mode, prices)
    steps = list(speculative(cached, drafter, task, LENGTHS[mode], rng))
    assert (found.tokens, found.steps) == (30, len(steps))
    nodes = sum(len(step.nodes) for step in steps)
    assert nodes
    assert found.time == pytest.approx(len(steps) + 0.01 * nodes + head.paid)
    assert head.paid > 0 or mode in ("ngram", "auto")
