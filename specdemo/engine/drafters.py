"""What a drafter proposes, and the drafter that needs no model. Each is one class and one row in `modes.DRAFTERS`.

A drafter sees the committed ids and returns new nodes only. It never decides what is accepted. The others: a draft
model in draft_model.py, a feature head in head.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

import torch

from specdemo.engine.ngram import NgramModel
from specdemo.engine.types import Origin


@dataclass(frozen=True, slots=True)
class Draft:
    """N proposed nodes. A chain is a tree whose parents are -1, 0, 1, ...; siblings stand in the order of drawing.

    probs [N, V]: row i is the exact distribution from which node i and its siblings were sampled, in the target's
    vocabulary; None for a deterministic proposal (a point mass). confidence: the drafter's own probability of each
    node, to show; None where it has none. note: why nothing was proposed.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()
    probs: torch.Tensor | None = None
    confidence: tuple[float | None, ...] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.origins) == len(self.confidence):
            raise ValueError("a draft needs one parent, origin and confidence for each token")
        if any(not -1 <= parent < i for i, parent in enumerate(self.parents)):
            raise ValueError("a node's parent must come before it")

    def children(self, node: int) -> list[int]:
        """Nodes whose parent is `node` (-1: the last committed token), in the order of drawing."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def first(self, count: int) -> "Draft":
        """The first `count` nodes alone. Not for nodes that were drawn: dropping those biases the answer."""
        assert self.probs is None, "a drawn node must be verified"
        kept = (self.tokens[:count], self.parents[:count], self.origins[:count])
        return Draft(*kept, None, self.confidence[:count], self.note)

    @property
    def rows(self) -> list[int]:
        """Parents as `CachedModel.forward` takes them when the last committed token goes first."""
        return [-1, *(parent + 1 for parent in self.parents)]

    def paths(self) -> list[tuple[int, ...]]:
        """Of each node the ids from the last committed token to it, its own included."""
        found: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return found

    def reach(self) -> list[float]:
        """Of each node the probability that all drafted tokens down to it are accepted, as the drafter sees it."""
        found: list[float] = []
        for parent, p in zip(self.parents, self.confidence, strict=True):
            found.append((found[parent] if parent >= 0 else 1.0) * (p or 0.0))
        return found

    @staticmethod
    def chain(
        tokens: Sequence[int],
        origin: Origin,
        probs: torch.Tensor | None = None,
        confidence: Sequence[float | None] | None = None,
    ) -> "Draft":
        n = len(tokens)
        return Draft(
            tuple(tokens),
            tuple(range(-1, n - 1)),
            (origin,) * n,
            probs,
            tuple(confidence) if confidence is not None else (None,) * n,
        )


class Drafter(Protocol):
    """begin() reads the prompt (its cost is part of TTFT); propose() returns at most `budget` nodes.

    models, table_bytes: what it holds in memory beside the target; cache_bytes: what it holds of this text.
    """

    @property
    def models(self) -> Sequence[Any]: ...

    @property
    def table_bytes(self) -> int: ...

    def begin(self, prompt: Sequence[int]) -> None: ...

    def propose(self, tokens: Sequence[int], budget: int) -> Draft: ...

    @property
    def cache_bytes(self) -> int: ...


# Least probability of a node. A row adds 0.05 to the target's pass on a CPU and some two tokens come of the time of a
# pass, so a node that is less probable than 0.05 x 2 costs more than it brings.
FLOOR = 0.1
BRANCHES = 4  # children a node may have

# What may follow a node (-1: the last committed token) behind which the text is `context`: (id, p, who says so).
Expand = Callable[[int, tuple[int, ...]], Iterable[tuple[int, float, Origin]]]


def grow(context: tuple[int, ...], expand: Expand, budget: int, floor: float = FLOOR) -> Draft:
    """The `budget` most probable nodes of the tree that `expand` spans, each with its p as confidence.

    Best first: a node's probability is the product of p down to it, so its parent is always taken before it. Nodes
    below `floor` are left out. The children are certain proposals (point masses), not draws.
    Source: Li et al. 2024 (EAGLE-2), section 4, reranking by cumulative confidence.
    """
    nodes: list[tuple[int, int, Origin, float]] = []
    waiting: list[tuple[float, int, int, float, int, Origin, tuple[int, ...]]] = []

    def ask(parent: int, p: float, text: tuple[int, ...]) -> None:
        for id, conditional, origin in expand(parent, text):
            if p * conditional >= floor:
                # The serial number settles ties: the node that was proposed first goes first.
                heappush(waiting, (-p * conditional, next(serial), parent, conditional, id, origin, text))

    serial = count()
    ask(-1, 1.0, context)
    while waiting and len(nodes) < budget:
        p, _, parent, conditional, id, origin, text = heappop(waiting)
        nodes.append((id, parent, origin, conditional))
        ask(len(nodes) - 1, -p, (*text, id))
    if not nodes:
        return Draft(note="nothing probable enough to propose")
    ids, parents, origins, confidence = zip(*nodes, strict=True)
    return Draft(ids, parents, origins, None, confidence)


class NgramDraft:
    """Proposes the tree that an n-gram model holds most probable. It costs next to nothing and has no cache."""

    models = ()
    cache_bytes = 0

    def __init__(self, model: NgramModel, floor: float = FLOOR) -> None:
        self.model = model
        self.floor = floor

    @property
    def table_bytes(self) -> int:
        return self.model.table.nbytes

    def begin(self, prompt: Sequence[int]) -> None:
        self.model.begin()
        self.model.read(prompt)

    def propose(self, tokens: Sequence[int], budget: int) -> Draft:
        self.model.read(tokens)
        return grow(tuple(tokens[-self.model.longest :]), self._expand, budget, self.floor)

    def _expand(self, node: int, context: tuple[int, ...]) -> Iterable[tuple[int, float, Origin]]:
        return ((id, p, Origin.NGRAM) for id, p in self.model.next(context, BRANCHES))
