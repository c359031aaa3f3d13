"""Tokens per step of drafters over answers that are known already: what they draft is exact, no clock is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from specdemo.config import LENGTHS
from specdemo.engine.auto import AutoDraft, Costs
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import NOTHING, plain
from specdemo.engine.drafters import Drafter
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Task
from specdemo.measure.results import way
from specdemo.models.load import Loaded
from specdemo.modes import DRAFTERS

PACED = ("ngram", "chain", "tree", "auto")  # what the embedded pair drafts without a draft model


def simulate(drafter: Drafter, ids: Sequence[int], start: int, budget: int, most: int) -> tuple[int, int]:
    """(steps, nodes) of speculation over a known greedy answer, ids[start:], that might have had `most` tokens."""
    drafter.begin(ids[:start])
    at, steps, nodes = start + 1, 1, 0  # the first token after the prompt is the target's own
    while at < len(ids):
        room = min(budget, start + most - at - 1)
        draft = drafter.propose(ids[:at], room) if room > 0 else NOTHING
        nodes += len(draft.tokens)
        node = -1
        while at < len(ids):
            wanted = [child for child in draft.children(node) if draft.tokens[child] == ids[at]]
            if not wanted:
                break
            node, at = wanted[0], at + 1
        at += 1  # the target's own token
        steps += 1
    return steps, nodes


@dataclass(frozen=True, slots=True)
class Prices:
    """In target passes over one token: a further row of a pass, and a pass of the head."""

    row: float
    head: float

    @property
    def costs(self) -> Costs:
        return Costs(tuple(1 + self.row * nodes for nodes in range(max(LENGTHS.values()) + 1)))


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one drafter over one answer. time: of all its steps, in target passes over one token."""

    tokens: int
    steps: int
    time: float


@torch.inference_mode()
def paces(loaded: Loaded, task: Task, modes: Sequence[str], prices: Prices) -> dict[str, Pace]:
    """Let the target answer plainly, then every mode draft for that answer: those of PACED, "tree:4" for a length.

    Drafters see the very states of the target that they would see in a race.
    """
    target, rng, found = CachedModel(loaded.target), Randomness(task.seed, loaded.target.device), {}
    assert loaded.head is not None, "the embedded pair has one"
    with metered(loaded.head, prices.head) as clock:
        drafters = {name: _drafter(loaded, target, way(name)[0], task, rng, prices, clock) for name in modes}
        answer = [token.id for step in plain(target, task, rng) for token in step.tokens]
        ids, start = [*task.prompt, *answer], len(task.prompt)
        for name, drafter in drafters.items():
            began, (mode, length) = clock(), way(name)
            steps, nodes = simulate(drafter, ids, start, length or LENGTHS[mode], task.max_new_tokens)
            found[name] = Pace(len(answer), steps, steps + prices.row * nodes + clock() - began)
    return found


@contextmanager
def metered(head: nn.Module, price: float) -> Iterator[Callable[[], float]]:
    """A clock that only passes of `head` move, each by `price`."""
    paid = 0.0

    def pay(*_: object) -> None:
        nonlocal paid
        paid += price

    hook = head.register_forward_hook(pay)
    try:
        yield lambda: paid
    finally:
        hook.remove()


def _drafter(
    loaded: Loaded,
    target: CachedModel,
    mode: str,
    task: Task,
    rng: Randomness,
    prices: Prices,
    clock: Callable[[], float],
) -> Drafter:
    """As a race builds it; but auto's clock and costs are the simulation's."""
    if mode != "auto":
        return DRAFTERS[mode](loaded, target, task, rng)
    free, dear = (DRAFTERS[own](loaded, target, task, rng) for own in ("ngram", "tree"))
    return AutoDraft(free, dear, prices.costs, clock=clock)
