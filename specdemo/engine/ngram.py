"""An n-gram model: what usually follows the last few tokens, from a table and from the text so far.

It knows no model and no tensor, and a look costs microseconds. Convention: a context is a tuple of ids, the latest at
the end; p is the probability that this model gives a next id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

DISCOUNT = 0.5  # taken off every count; what it frees goes to shorter contexts
BITS = 21  # of an id in a packed context: three ids in 63 bits, vocabularies of two million
# What the text so far weighs against the table, by the length of the longest context that it has in common with it.
WEIGHTS = (0.2, 0.4, 0.6, 0.7, 0.8)
SCALE = 255  # a stored p is a byte


@dataclass(frozen=True, slots=True)
class Level:
    """Contexts of one length, M of them. keys [M]: packed, ascending. starts [M + 1]: where each one's followers are.

    ids, shares: of all followers; share is the discounted relative frequency, a context's shares sum to less than 1.
    """

    keys: np.ndarray
    starts: np.ndarray
    ids: np.ndarray
    shares: np.ndarray

    def followers(self, context: Iterable[int]) -> list[tuple[int, float]]:
        key = pack(context)
        at = int(self.keys.searchsorted(np.uint64(key)))
        if at == len(self.keys) or self.keys[at] != key:
            return []
        rows = slice(self.starts[at], self.starts[at + 1])
        return list(zip(self.ids[rows].tolist(), (self.shares[rows] / SCALE).tolist(), strict=True))


def pack(context: Iterable[int]) -> int:
    """A context of at most three ids as one number."""
    key = 0
    for id in context:
        key = key << BITS | id
    return key


@dataclass(frozen=True, slots=True)
class NgramTable:
    """Counts that were made once: levels[n - 1] holds the contexts of n ids. Empty by default."""

    levels: tuple[Level, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(x.nbytes for level in self.levels for x in (level.keys, level.starts, level.ids, level.shares))

    @staticmethod
    def read(path: Path) -> NgramTable:
        arrays = load_file(path)
        count = sum(name.startswith("keys") for name in arrays)
        levels = []
        for n in range(1, count + 1):
            starts = np.concatenate([[0], np.cumsum(arrays[f"sizes_{n}"], dtype=np.uint32)])
            levels.append(Level(arrays[f"keys_{n}"], starts, arrays[f"ids_{n}"], arrays[f"shares_{n}"]))
        return NgramTable(tuple(levels))

    def write(self, path: Path, metadata: dict[str, str]) -> None:
        arrays: dict[str, np.ndarray] = {}
        for n, level in enumerate(self.levels, 1):
            arrays |= {
                f"keys_{n}": level.keys,
                f"sizes_{n}": np.diff(level.starts).astype(np.uint8),
                f"ids_{n}": level.ids.astype(np.min_scalar_type(int(level.ids.max(initial=0)))),
                f"shares_{n}": level.shares,
            }
        save_file(arrays, path, metadata)

    @staticmethod
    def count(texts: Iterable[tuple[Sequence[int], int]], order: int, least: int, most: int) -> NgramTable:
        """Count what follows contexts of up to `order` ids in texts, given as (ids, where counting begins).

        What one text repeats counts once: a text that goes round in circles would outweigh all others, and what
        repeats in the running text is counted there. Pruned: a follower of two ids or more must be in `least` texts,
        and a context keeps at most `most`.
        """
        counts: list[dict[tuple[int, ...], Counter[int]]] = [{} for _ in range(order)]
        for ids, start in texts:
            ends = range(max(start, 1), len(ids))
            for n in range(1, order + 1):
                for context, id in {(tuple(ids[end - n : end]), ids[end]) for end in ends if end >= n}:
                    counts[n - 1].setdefault(context, Counter())[id] += 1
        levels = []
        for n, found in enumerate(counts, 1):
            kept = {}
            for context, seen in found.items():
                total = seen.total()
                best = sorted(seen.items(), key=lambda follower: (-follower[1], follower[0]))
                # A share that rounds to no byte is of no use.
                followers = [
                    (id, share)
                    for id, times in best[: most if n > 1 else 4 * most]
                    if (times >= least or n == 1) and (share := int(SCALE * (times - DISCOUNT) / total)) > 0
                ]
                if followers:
                    kept[pack(context)] = followers
            keys = sorted(kept)
            sizes = [len(kept[key]) for key in keys]
            flat = [follower for key in keys for follower in kept[key]]
            levels.append(
                Level(
                    np.array(keys, dtype=np.uint64),
                    np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32),
                    np.array([id for id, _ in flat], dtype=np.uint32),
                    np.array([share for _, share in flat], dtype=np.uint8),
                )
            )
        return NgramTable(tuple(levels))


class NgramModel:
    """Interpolates a table with counts over the text so far, each backing off from long contexts to short ones.

    Sources: Ney, Essen and Kneser 1994 (absolute discounting); Katz 1987 (backing off).
    """

    longest = len(WEIGHTS)  # ids of the longest context that is looked up

    def __init__(self, table: NgramTable) -> None:
        self.table = table
        self._read = 0
        self._seen: dict[tuple[int, ...], Counter[int]] = {}

    def begin(self) -> None:
        """Begin a new text; the table stays."""
        self._read = 0
        self._seen.clear()

    def read(self, tokens: Sequence[int]) -> None:
        """Count what is new in `tokens`, the whole text so far."""
        for end in range(max(self._read, 1), len(tokens)):
            for n in range(1, min(self.longest, end) + 1):
                self._seen.setdefault(tuple(tokens[end - n : end]), Counter())[tokens[end]] += 1
        self._read = len(tokens)

    def next(self, context: tuple[int, ...], count: int) -> list[tuple[int, float]]:
        """The `count` most probable next ids with p, most probable first; the lower id wins a tie."""
        near, weight = self._near(context)
        scores = {id: (1 - weight) * p for id, p in self._far(context).items()}
        for id, p in near.items():
            scores[id] = scores.get(id, 0.0) + weight * p
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count]

    def matched(self, context: tuple[int, ...]) -> int:
        """Ids of the longest end of `context` that the text so far has gone on from before."""
        return next((n for n in range(min(self.longest, len(context)), 0, -1) if context[-n:] in self._seen), 0)

    def _near(self, context: tuple[int, ...]) -> tuple[dict[int, float], float]:
        """p from the text so far, and what it weighs."""
        p: dict[int, float] = {}
        left, weight = 1.0, 0.0
        for n in range(min(self.longest, len(context)), 0, -1):
            seen = self._seen.get(context[-n:])
            if seen is None:
                continue
            weight = weight or WEIGHTS[n - 1]
            total = seen.total()
            for id, times in seen.items():
                p[id] = p.get(id, 0.0) + left * (times - DISCOUNT) / total
            left *= DISCOUNT * len(seen) / total
        return p, weight

    def _far(self, context: tuple[int, ...]) -> dict[int, float]:
        """p from the table."""
        p: dict[int, float] = {}
        left = 1.0
        for n in range(min(len(self.table.levels), len(context)), 0, -1):
            used = 0.0
            for id, share in self.table.levels[n - 1].followers(context[-n:]):
                p[id] = p.get(id, 0.0) + left * share
                used += share
            left *= 1 - used
        return p
