"""Tokens per step of drafters over answers that are known already: what they draft is exact, no clock is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdemo.config import LENGTHS, Mode
from specdemo.engine.auto import AutoDraft, Costs
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import NOTHING, plain
from specdemo.engine.drafters import Drafter, NgramDraft
from specdemo.engine.head import HeadDraft
from specdemo.engine.ngram import NgramModel
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Task
from specdemo.models.load import Loaded

PACED: tuple[Mode, ...] = ("ngram", "chain", "tree", "auto")  # what the embedded pair drafts without a draft model


def simulate(drafter: Drafter, rows: Sequence[tuple[Sequence[int], int]], budget: int) -> tuple[int, int, int]:
    """(tokens, steps, nodes) of speculation over known greedy answers, given as (ids, where the answer begins)."""
    tokens = steps = nodes = 0
    for ids, start in rows:
        drafter.begin(ids[:start])
        at, steps = start + 1, steps + 1  # the first token after the prompt is the target's own
        while at < len(ids):
            draft = drafter.propose(ids[:at], min(budget, len(ids) - at - 1)) if len(ids) - at > 1 else NOTHING
            nodes += len(draft.tokens)
            node = -1
            while at < len(ids):
                wanted = [child for child in draft.children(node) if draft.tokens[child] == ids[at]]
                if not wanted:
                    break
                node, at = wanted[0], at + 1
            at += 1  # the target's own token
            steps += 1
        tokens += len(ids) - start
    return tokens, steps, nodes


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


class Priced(CachedModel):
    """A head whose passes are paid for on a clock of their own."""

    def __init__(self, head: Any, price: float) -> None:
        super().__init__(head, keep_states=True)
        self.price, self.paid = price, 0.0

    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        self.paid += self.price
        return super().forward(*args, **options)


def paces(loaded: Loaded, task: Task, modes: Sequence[Mode], prices: Prices) -> dict[Mode, Pace]:
    """Let the target answer plainly, then every mode of PACED draft for that answer.

    Drafters see the very states of the target that they would see in a race.
    """
    target = CachedModel(loaded.target)
    drafters = {mode: _drafter(loaded, target, mode, prices) for mode in modes}
    answer = plain(target, task, Randomness(task.seed, target.device))
    ids = [*task.prompt, *(token.id for step in answer for token in step.tokens)]
    return dict(_paces(drafters, ids, len(task.prompt), prices))


@torch.inference_mode()
def _paces(
    drafters: dict[Mode, tuple[Drafter, Priced]], ids: Sequence[int], start: int, prices: Prices
) -> Iterator[tuple[Mode, Pace]]:
    for mode, (drafter, head) in drafters.items():
        tokens, steps, nodes = simulate(drafter, [(ids, start)], LENGTHS[mode])
        yield mode, Pace(tokens, steps, steps + prices.row * nodes + head.paid)


def _drafter(loaded: Loaded, target: CachedModel, mode: Mode, prices: Prices) -> tuple[Drafter, Priced]:
    head = Priced(loaded.head, prices.head)
    ngram = NgramModel(loaded.ngram)
    if mode == "ngram":
        return NgramDraft(ngram), head
    if mode == "chain":
        return HeadDraft(head, target, ngram, alone=True, branches=1), head
    tree = HeadDraft(head, target, ngram)
    if mode == "tree":
        return tree, head
    return AutoDraft(NgramDraft(NgramModel(loaded.ngram)), tree, prices.costs, clock=lambda: head.paid), head
