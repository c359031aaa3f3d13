"""Who proposes tokens. A drafter is one class here and one row in `run.MODES`.

A drafter sees the committed ids and returns new nodes only. It never decides what is accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from specdemo.engine.cache import CachedModel
from specdemo.engine.sampling import Randomness, distribution
from specdemo.engine.types import Origin, Sampling


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

    @property
    def tree(self) -> list[int] | None:
        """Parents as `CachedModel.forward` takes them when the last committed token goes first; None for a chain."""
        if self.parents == tuple(range(-1, len(self.parents) - 1)):
            return None
        return [-1, *(parent + 1 for parent in self.parents)]

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
    """begin() reads the prompt (its cost is part of TTFT); propose() returns at most `budget` nodes."""

    def begin(self, prompt: Sequence[int]) -> None: ...

    def propose(self, tokens: Sequence[int], budget: int) -> Draft: ...

    @property
    def cache_bytes(self) -> int: ...


class NgramLookup:
    """Proposes what followed the longest earlier occurrence of the last n tokens, n from `longest` to `shortest`.

    The most recent occurrence wins. Where the continuation runs into the present it goes on through its own
    proposal, so a repeating text is proposed as repeating. Source: Saxena 2023, "Prompt lookup decoding".
    """

    cache_bytes = 0

    def __init__(self, longest: int = 3, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-gram lengths must be 1 <= {shortest} <= {longest}")
        self.lengths = range(longest, shortest - 1, -1)
        self._indexed = 0
        self._follower: dict[tuple[int, ...], int] = {}  # n-gram -> position after its latest occurrence

    def begin(self, prompt: Sequence[int]) -> None:
        self._indexed = 0
        self._follower.clear()
        self._index(prompt)

    def propose(self, tokens: Sequence[int], budget: int) -> Draft:
        self._index(tokens)
        for n in self.lengths:
            start = self._follower.get(tuple(tokens[-n:])) if len(tokens) > n else None
            if start is not None:
                text = list(tokens[start:])
                while len(text) < budget:
                    text.append(text[len(text) - (len(tokens) - start)])
                return Draft.chain(text[:budget], Origin.NGRAM)
        return Draft(note="no earlier occurrence")

    def _index(self, tokens: Sequence[int]) -> None:
        # An n-gram is indexed once a token follows it: the last tokens of the text are the question, not an answer.
        for end in range(max(self._indexed, 1), len(tokens)):
            for n in self.lengths:
                if n <= end:
                    self._follower[tuple(tokens[end - n : end])] = end
        self._indexed = len(tokens)


class ChainDraft:
    """A smaller causal language model that drafts a chain, token by token, with a cache of its own.

    vocabulary: the target's logit width V. A draft whose logits are narrower or wider by padding is cut to
    `shared`, the ids that both tokenizers know, so that a padding id is never drafted. An id that only the target
    knows is read as the last shared one: that costs acceptance, never exactness.
    Past the draft's own context it proposes nothing and says so.
    """

    def __init__(self, model: CachedModel, vocabulary: int, shared: int, sampling: Sampling, rng: Randomness) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.shared = shared
        self.sampling = sampling
        self.rng = rng
        self._cached: list[int] = []

    @property
    def cache_bytes(self) -> int:
        return self.model.cache_bytes

    def begin(self, prompt: Sequence[int]) -> None:
        self.model.keep(0)
        self._cached = []
        # The last token is left for the first proposal, which needs its logits.
        if len(prompt) <= self.model.context:
            self._cached = self._known(prompt[:-1])
            for _ in self.model.prefill(self._cached):
                pass

    def propose(self, tokens: Sequence[int], budget: int) -> Draft:
        budget = min(budget, self.model.context - len(tokens))
        if budget <= 0:
            return Draft(note=f"past the draft's context of {self.model.context} tokens")
        tokens = self._known(tokens)
        self._forget_rejected(tokens)
        fresh = tokens[len(self._cached) :]
        drafted: list[int] = []
        confidence: list[float | None] = []
        rows: list[torch.Tensor] = []
        for _ in range(budget):
            logits = self.model.forward(fresh, keep_logits=1)[:, : self.shared]
            self._cached += fresh
            if self.sampling.greedy:
                q = distribution(logits, Sampling(temperature=1))[0]
                token = int(logits.argmax())
            else:
                q = distribution(logits, self.sampling)[0]
                q = torch.nn.functional.pad(q, (0, self.vocabulary - self.shared))
                token = self.rng.choose(q)
                rows.append(q)
            confidence.append(float(q[token]))
            drafted.append(token)
            fresh = [token]
        return Draft.chain(drafted, Origin.DRAFT, torch.stack(rows) if rows else None, confidence)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        return [min(token, self.shared - 1) for token in tokens]

    def _forget_rejected(self, tokens: Sequence[int]) -> None:
        """Roll the cache back to what is still true; at least the last token is left to be fed again."""
        agreed = min(len(self._cached), len(tokens) - 1)
        # Only the tail can differ: what was drafted last and not accepted.
        start = next((i for i in range(agreed) if self._cached[i] != tokens[i]), agreed)
        self.model.keep(start)
        del self._cached[start:]
