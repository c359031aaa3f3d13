"""Evaluating drafters without a model: the simulation is the real loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.draft.evaluate import simulate
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
