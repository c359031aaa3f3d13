"""An n-gram model: what usually follows the last few tokens, from a table and from the text so far.

It knows no model and no tensor; a lookup costs microseconds. Convention: a context is a tuple of the last ids, the
latest at the end; p is the probability that this model gives a next id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Followers = Sequence[tuple[int, float]]  # (id, discounted probability), most probable first; sums to at most 1

DISCOUNT = 0.5  # taken off every count; what it frees goes to shorter contexts
WEIGHTS = (0.1, 0.3, 0.5, 0.65, 0.75)  # what the text so far weighs against the table, by length of its match


@dataclass(frozen=True, slots=True)
class Table:
    """Fixed counts: context of `order` ids or fewer -> its followers. Empty by default."""

    order: int = 0
    followers: Mapping[tuple[int, ...], Followers] = field(default_factory=dict)


class NgramModel:
    """Interpolates a table with counts over the text so far, each backing off from long contexts to short ones.

    Source: Ney, Essen and Kneser 1994, absolute discounting; Katz 1987 for the idea of backing off.
    longest: longest context (ids) looked up in the text so far.
    """

    def __init__(self, table: Table, longest: int = len(WEIGHTS)) -> None:
        self.table = table
        self.longest = longest
        self._read = 0
        self._seen: dict[tuple[int, ...], Counter[int]] = {}

    def read(self, tokens: Sequence[int]) -> None:
        """Count what is new in `tokens`, the whole text so far; a text that begins anew is counted from its start."""
        for end in range(max(self._read, 1), len(tokens)):
            for n in range(1, min(self.longest, end) + 1):
                self._seen.setdefault(tuple(tokens[end - n : end]), Counter())[tokens[end]] += 1
        self._read = len(tokens)

    def forget(self) -> None:
        """Begin a new text; the table stays."""
        self._read = 0
        self._seen.clear()

    def next(self, context: tuple[int, ...], count: int) -> list[tuple[int, float]]:
        """The `count` most probable next ids with p, most probable first; the lower id wins a tie."""
        near, matched = self._near(context)
        weight = WEIGHTS[matched - 1] if matched else 0.0
        scores = self._far(context)
        for id in scores:
            scores[id] *= 1 - weight
        for id, p in near.items():
            scores[id] = scores.get(id, 0.0) + weight * p
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count]

    def _near(self, context: tuple[int, ...]) -> tuple[dict[int, float], int]:
        """p from the text so far, and the length of the longest context that occurred in it."""
        p: dict[int, float] = {}
        left, matched = 1.0, 0
        for n in range(min(self.longest, len(context)), 0, -1):
            seen = self._seen.get(context[-n:])
            if seen is None:
                continue
            matched = matched or n
            total = seen.total()
            for id, times in seen.items():
                p[id] = p.get(id, 0.0) + left * (times - DISCOUNT) / total
            left *= DISCOUNT * len(seen) / total
        return p, matched

    def _far(self, context: tuple[int, ...]) -> dict[int, float]:
        """p from the table."""
        p: dict[int, float] = {}
        left = 1.0
        for n in range(min(self.table.order, len(context)), 0, -1):
            followers = self.table.followers.get(context[-n:])
            if followers is None:
                continue
            used = 0.0
            for id, share in followers:
                p[id] = p.get(id, 0.0) + left * share
                used += share
            left *= 1 - used
        return p
