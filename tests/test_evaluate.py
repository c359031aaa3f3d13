"""Evaluating drafters over known answers: the simulation takes the steps of the real loop and pays for all of them."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.config import LENGTHS
from specdemo.draft.evaluate import PACED, Prices, _drafter, metered, paces, simulate
from specdemo.draft.train import new_head
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.drafters import NgramDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Task
from specdemo.measure.results import way

TARGET = model("llama")


def rng():
    return Randomness(0, torch.device("cpu"))


@given(
    prompt=st.lists(st.integers(0, 31), min_size=1, max_size=20),
    tokens=st.integers(1, 25),
    budget=st.integers(1, 9),
    eos=st.frozensets(st.integers(0, 31), max_size=9),
)
def test_the_simulation_takes_the_steps_that_the_real_loop_takes(prompt, tokens, budget, eos):
    task = Task(tuple(prompt), tokens, eos=eos)
    answer = [token.id for step in plain(CachedModel(TARGET), task, rng()) for token in step.tokens]
    drafter = NgramDraft(NgramModel(NgramTable()))
    steps = list(speculative(CachedModel(TARGET), drafter, task, budget, rng()))
    nodes = sum(len(step.nodes) for step in steps)
    assert simulate(drafter, [*prompt, *answer], len(prompt), budget, tokens) == (len(steps), nodes)


@pytest.mark.parametrize("name", [*PACED, "chain:2", "ngram:3"])
def test_the_embedded_pairs_drafters_are_those_of_a_race_and_all_their_passes_are_paid_for(name):
    mode, length = way(name)
    target = model("llama", tie_word_embeddings=True)
    loaded = SimpleNamespace(target=target, head=new_head(target, list(range(32))).eval(), ngram=NgramTable())
    task, prices = Task((3, 4, 5, 3, 4, 5, 3), 30), Prices(row=0.01, head=0.02)
    found = paces(loaded, task, [name], prices)[name]
    cached = CachedModel(target)
    with metered(loaded.head, prices.head) as clock:
        drafter = _drafter(loaded, cached, mode, task, rng(), prices, clock)
        steps = list(speculative(cached, drafter, task, length or LENGTHS[mode], rng()))
        paid = clock()
    assert (found.tokens, found.steps) == (30, len(steps))
    nodes = sum(len(step.nodes) for step in steps)
    assert nodes
    assert found.time == pytest.approx(len(steps) + 0.01 * nodes + paid)
    assert (paid == 0) == (mode == "ngram")
    assert not loaded.head._forward_hooks
