"""A smaller causal language model that drafts: a chain, a tree, or a tree for which an n-gram model speculates in turn.

A path names a node: the ids from the last committed token to it, () being that token itself. One pass of the draft
reads any number of nodes, whatever their depth. Without an n-gram model only nodes whose parent was read are known, so
that a pass is spent on each depth; with one (staged) a pass reads nodes of several depths, guessed beforehand.
Sources: Spector and Re 2023 (staged speculative decoding), sections 3.1 and 3.2; Li et al. 2024 (EAGLE-2), section 4.
Shapes: N nodes, V the target's vocabulary, S ids shared by target and draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import pad

from specdemo.engine.cache import CachedModel
from specdemo.engine.drafters import BRANCHES, Draft, grow
from specdemo.engine.ngram import NgramModel
from specdemo.engine.sampling import Randomness, distribution, penalised
from specdemo.engine.types import Origin, Sampling
from specdemo.engine.verify import verify, without

Path = tuple[int, ...]
Child = tuple[int, float, Origin]  # id, p, who wrote it


@dataclass(frozen=True, slots=True)
class Growth:
    """How a draft model looks ahead.

    branches: children of a node, at most. rows: nodes that one pass reads, at most. floor: least probability of a node.
    worth: what a further pass must promise to be run, in expected tokens. acceptance: of a drawn token, assumed for the
    shape of a tree, which is fixed before anything is drawn.
    """

    branches: int
    rows: int
    floor: float
    worth: float
    acceptance: float = 0.7


CHAIN = Growth(branches=1, rows=1, floor=0.0, worth=0.0)
TREE = Growth(BRANCHES, rows=4, floor=0.05, worth=0.25)
STAGED = Growth(BRANCHES, rows=8, floor=0.05, worth=0.25)


class ModelDraft:
    """Drafts with a model and its cache. ngram: speculates for the draft; None is none.

    vocabulary: the target's logit width V. A draft whose logits are narrower or wider by padding is cut to `shared`
    (S), the ids that both tokenizers know, so that a padding id is never drafted. An id that only the target knows is
    read as the last shared one: that costs acceptance, never exactness.
    Greedy proposals are the draft's most probable ids; otherwise they are drawn, and q goes with them.
    Past the draft's own context it proposes nothing and says so.
    """

    def __init__(
        self,
        model: CachedModel,
        vocabulary: int,
        shared: int,
        sampling: Sampling,
        rng: Randomness,
        growth: Growth = CHAIN,
        ngram: NgramModel | None = None,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.shared = shared
        self.sampling = sampling
        self.rng = rng
        self.growth = growth
        self.ngram = ngram
        self._base = 0  # cached positions that are committed text for certain
        self._fresh: Path = ()  # committed since, as this draft knows it
        self._rows: dict[Path, int] = {}  # path from the base -> row of the draft's tree
        self._logits: dict[Path, torch.Tensor] = {}  # path -> [S], penalties applied

    @property
    def models(self) -> tuple[Any]:
        return (self.model.model,)

    @property
    def table_bytes(self) -> int:
        return self.ngram.table.nbytes if self.ngram else 0

    @property
    def cache_bytes(self) -> int:
        return self.model.cache_bytes

    def begin(self, prompt: Sequence[int]) -> None:
        self.model.keep(0)
        self._rows = {}
        if self.ngram:
            self.ngram.begin()
        # The last token is left for the first proposal, which needs its logits.
        if len(prompt) <= self.model.context:
            for _ in self.model.prefill(self._known(prompt[:-1])):
                pass
        self._base = len(self.model)

    def propose(self, tokens: Sequence[int], budget: int) -> Draft:
        budget = min(budget, self.model.context - len(tokens))
        if budget <= 0:
            return Draft(note=f"past the draft's context of {self.model.context} tokens")
        if self.ngram:
            self.ngram.read(tokens)
        self._settle(self._known(tokens))
        return self._likely(tokens, budget) if self.sampling.greedy else self._drawn(tokens, budget)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        return [min(token, self.shared - 1) for token in tokens]

    def _settle(self, tokens: Sequence[int]) -> None:
        """Keep what was read and has been committed since; the last token at least is left to be read."""
        rows: list[int] = []
        path: Path = ()
        for token in tokens[self._base : -1]:
            path = (*path, token)
            if path not in self._rows:
                break
            rows.append(self._rows[path])
        self.model.keep(self._base, rows)
        self._base, self._rows, self._logits = len(self.model), {}, {}
        self._fresh = tuple(tokens[self._base :])

    @property
    def _room(self) -> int:
        """Nodes that can still be read; all branches fill the cache, not only the longest."""
        return self.model.context - len(self.model) - (0 if self._rows else len(self._fresh))

    def _read(self, paths: Iterable[Path], tokens: Sequence[int]) -> None:
        """One pass over those nodes that were not read, parents first, and over what was committed since the last."""
        new = [path for path in paths if path and path not in self._logits]
        fresh = [] if self._rows else [self._fresh[: i + 1] for i in range(len(self._fresh))]
        if not new and not fresh:
            return
        parents = []
        rows = [*fresh, *(self._fresh + path for path in new)]
        for row in rows:
            parents.append(self._rows.get(row[:-1], -1))
            self._rows[row] = len(self._rows)
        answered = [(), *new] if fresh else new
        logits = self.model.forward([row[-1] for row in rows], parents, keep_logits=len(answered))[:, : self.shared]
        logits = penalised(logits, tokens, answered, self.sampling.repetition_penalty)
        self._logits |= zip(answered, logits, strict=True)

    # --- greedy: the most probable nodes, as far as looking is worth it ------------------------------------------

    def _likely(self, tokens: Sequence[int], budget: int) -> Draft:
        context = self._context(tokens)
        children: dict[Path, list[Child]] = {}
        guessed: set[Path] = set()  # read before the draft had said what it thinks of them

        def expand(_node: int, text: Path) -> Iterable[Child]:
            found = children.get(text[len(context) :])
            return self._guess(text) if found is None else found

        def best() -> tuple[Draft, list[Path], float]:
            """The tree as it stands, which of its nodes to read next, and what that promises."""
            draft = grow(context, expand, budget, self.growth.floor)
            reach = dict(zip(draft.paths(), draft.reach(), strict=True))
            # What a better node would push out of a full tree.
            least = min(reach.values()) if len(reach) == budget else 0.0
            unread = [path for path in reach if path not in children][: min(self.growth.rows, self._room)]
            return draft, unread, sum(reach[path] - least for path in unread)

        _, unread, _ = best()
        while True:
            guessed |= {path for path in unread if path[:-1] not in children}
            self._read(unread, tokens)
            children |= self._children([path for path in ((), *unread) if path not in children], guessed)
            draft, unread, promise = best()
            if promise <= self.growth.worth:
                return draft

    def _children(self, paths: list[Path], guessed: set[Path]) -> dict[Path, list[Child]]:
        top = torch.stack([self._logits[path] for path in paths]).float().softmax(-1)
        best = top.topk(min(self.growth.branches, top.shape[-1]), dim=-1)
        return {
            path: [
                (id, p, Origin.NGRAM if (*path, id) in guessed else Origin.DRAFT)
                for id, p in zip(ids, shares, strict=True)
            ]
            for path, ids, shares in zip(paths, best.indices.tolist(), best.values.tolist(), strict=True)
        }

    def _context(self, tokens: Sequence[int]) -> Path:
        return tuple(tokens[-self.ngram.longest :]) if self.ngram else ()

    def _guess(self, text: Path) -> list[Child]:
        """What the n-gram model holds probable behind `text`."""
        if self.ngram is None:
            return []
        found = self.ngram.next(text[-self.ngram.longest :], self.growth.branches)
        return [(id, p, Origin.NGRAM) for id, p in found if id < self.shared]

    # --- sampling: a shape that is fixed first, filled with draws --------------------------------------------------

    def _drawn(self, tokens: Sequence[int], budget: int) -> Draft:
        """Draws from the draft's q, siblings without replacement, into a shape that no draw has an influence on."""
        plan = shape(budget, self.growth.branches, self.growth.acceptance, spine=self.ngram is not None)
        spine = self._speculated(tokens, max(map(len, plan))) if self.ngram else []
        paths: dict[Path, Path] = {(): ()}  # place in the plan -> path drawn for it
        places: list[Path] = []
        origins, confidence, rows = [], [], []
        for _, level in groupby(plan, key=len):
            families = [(parent, list(own)) for parent, own in groupby(level, key=lambda place: place[:-1])]
            families = [family for family in families if family[0] in paths]
            self._read([paths[parent] for parent, _ in families], tokens)
            for parent, family in families:
                q = rest = self._q(paths[parent])
                for place in family:
                    followed = bool(spine) and not any(place)
                    x, origin = spine[len(parent)] if followed else (self.rng.choose(rest), Origin.DRAFT)
                    paths[place] = (*paths[parent], x)
                    places.append(place)
                    origins.append(origin)
                    confidence.append(float(q[x]))
                    rows.append(q)
                    rest = without(rest, x)
                    if not rest.any():
                        break
        index = {place: i for i, place in enumerate(places)}
        parents = tuple(index.get(place[:-1], -1) for place in places)
        ids = tuple(paths[place][-1] for place in places)
        return Draft(ids, parents, tuple(origins), torch.stack(rows), tuple(confidence))

    def _speculated(self, tokens: Sequence[int], length: int) -> list[tuple[int, Origin]]:
        """`length` ids drawn from the draft's q, each at the place of the one before it, in as few passes as may be.

        The same round one level down: the n-gram model proposes a tree, the draft verifies it in one pass. The inner
        verification is lossless, so each id is distributed as the draft's own.
        """
        context, spine = self._context(tokens), list[tuple[int, Origin]]()
        while len(spine) < length:
            path = tuple(id for id, _ in spine)
            left = length - len(spine)
            guess = grow(
                (*context, *path),
                lambda _, text: self._guess(text),
                min(self.growth.rows, left - 1, self._room - left),
                self.growth.floor,
            )
            nodes = [(*path, *node) for node in guess.paths()]
            self._read([path, *nodes], tokens)
            logits = torch.stack([self._logits[node] for node in (path, *nodes)])
            verdict = verify(guess, logits, self.sampling, self.rng)
            spine += [(guess.tokens[i], Origin.NGRAM) for i in verdict.path]
            assert verdict.token is not None
            spine.append((verdict.token, Origin.DRAFT))
        return spine[:length]

    def _q(self, path: Path) -> torch.Tensor:
        """The distribution behind a node that was read, [V]."""
        q = distribution(self._logits[path][None], self.sampling)[0]
        return pad(q, (0, self.vocabulary - self.shared))


@lru_cache(maxsize=256)
def shape(budget: int, branches: int, acceptance: float, spine: bool) -> tuple[Path, ...]:
    """A tree of `budget` nodes, level by level. A node is named by the ranks among siblings that lead to it.

    The nodes that are reached most probably if every drawn token is accepted with `acceptance`. spine: only first
    children have children. The shape must not depend on what is drawn: to drop a drawn token because of its own
    probability would change the distribution of the answers.
    Source: Chen et al. 2024 (Sequoia), section 4.1, with one acceptance for all places.
    """
    waiting: list[tuple[float, int, Path]] = [(-acceptance, 1, (0,))]
    found: list[Path] = []
    while len(found) < budget:
        value, _, place = heappop(waiting)
        found.append(place)
        if place[-1] + 1 < branches:
            heappush(waiting, (value * (1 - acceptance), len(place), (*place[:-1], place[-1] + 1)))
        if not (spine and any(place)):
            heappush(waiting, (value * acceptance, len(place) + 1, (*place, 0)))
    return tuple(sorted(found, key=lambda place: (len(place), place)))
