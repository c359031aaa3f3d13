"""The plain values that flow out of the engine: a path is a stream of `Step`.

Nothing here imports torch. A recorded run is these values written down, so figures, traces and the page
are computed from the same objects whether a model ran a moment ago or a year ago.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite


class Origin(StrEnum):
    """Who wrote a token. Set when the token is committed, never derived from text later."""

    TARGET = "target"
    DRAFT = "draft"
    NGRAM = "ngram"
    UNVERIFIED = "unverified"  # the draft's, in an answer that the target only scored


class Outcome(StrEnum):
    """What became of a drafted node."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNTESTED = "untested"


class Finish(StrEnum):
    """Why a path ended without being told to."""

    EOS = "eos"
    LENGTH = "length"
    STOP = "stop"  # a stop string
    FAILED = "failed"  # the path broke; the step's note says how


RECHECKED = "a near-tie, decided again from passes over one token"  # the note of each such step


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token.

    logprob: natural log of the target's probability of `id` at its prefix, temperature 1, nothing cut off.
    margin: the target's best logit minus its second best at that prefix (logits have no unit), after any penalty.
    """

    id: int
    origin: Origin
    logprob: float
    margin: float


@dataclass(frozen=True, slots=True)
class Node:
    """One drafted token. `parent` indexes the step's nodes, -1 is the last committed token.

    p: probability of `id` under the target at the node's prefix, as used in its test (temperature 1 when greedy); None
    for a node that was never tested. q: the drafter's own probability of it; where nodes were drawn, what they were
    drawn with, else it plays no part in the test. None where the drafter has none.
    """

    id: int
    parent: int
    origin: Origin
    outcome: Outcome
    p: float | None
    q: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One target forward pass and what it committed.

    A chunk of a long prompt's prefill has neither tokens nor nodes and is not counted as a step.

    draft_s, verify_s: own-clock seconds spent drafting, and in the target's forward pass.
    seconds: own-clock seconds of the whole step, stamped by `race.timed`; the rest of it is "other".
    cache_bytes: bytes held by this path's key-value caches, the draft's included.
    process_bytes, device_bytes: memory of the whole process and of the accelerator, 0 where not measured.
    finish: set on the last step of a path. note: why this step was not speculative, if it was not, or how it failed.
    """

    tokens: tuple[Token, ...]
    nodes: tuple[Node, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    seconds: float = 0.0
    cache_bytes: int = 0
    process_bytes: int = 0
    device_bytes: int = 0
    finish: Finish | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn. temperature 0 is greedy; top_k 0, top_p 1 and repetition_penalty 1 switch those off.

    Raises ValueError with a message that says what to change.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1 (off), not {self.top_p}")
        if not (isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ValueError(f"repetition_penalty must be above 0, 1 is off, not {self.repetition_penalty}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Task:
    """What both paths are asked to do; the same object goes to both.

    prompt: token ids, at least one. eos: ids that end the answer. seed: of this path's own random source.
    stop: told the answer's ids and how many of them are new; returns after how many ids it is over, None if it is not.
    recheck: a greedy decision whose margin is below this (logits) is taken again from plain decoding's own passes where
    it came from others: a kernel for several tokens rounds differently from that for one. 0 is off.
    Raises ValueError for an empty prompt or a negative number of tokens.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 42
    stop: Callable[[Sequence[int], int], int | None] | None = None
    recheck: float = 0.0

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no tokens; write something first")
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be 0 or more, not {self.max_new_tokens}")
