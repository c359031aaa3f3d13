"""Every figure of a path, each defined and computed once: for the page, the command line and a replay alike.

A path's own clock counts only its own work; all times are own-clock seconds.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

from specdemo.engine.types import RECHECKED, Finish, Origin, Outcome, Step, Token

# What each figure means, in the words shown beside it.
DEFINITIONS = {
    "decode_tokens_per_s": "Tokens committed after the first step, divided by own-clock time after the first step.",
    "ttft_s": "Own-clock time to the first committed token, prefill of every model asked by then included.",
    "latency_s": "Own-clock time of the whole answer. A path's own clock counts only that path's work.",
    "score": "Mean log-probability of the committed tokens under the target at temperature 1; 0 would be certainty.",
    "tokens": "Tokens committed.",
    "speed_up": "Plain latency divided by speculative latency, on the same prompt and the same number of tokens.",
    "acceptance_rate": "Accepted drafted tokens divided by tested ones. What hangs below a rejected one is not tested; "
    "in a tree its siblings are, so rates of trees and chains do not compare.",
    "tokens_per_step": "Committed tokens divided by steps; a step is one target forward pass and what it committed.",
    "time_split": "Share of the speculative path's own clock: drafting, target passes (verify), everything else.",
    "lossless": "Greedy: the speculative token ids are compared with the plain ones. Sampling: both draw from the same "
    "distribution, so their texts may differ.",
    "memory": "Weights and caches that a path needs, counted byte by byte; both paths share one copy of the target. "
    "Process and device memory are what the system reports.",
}


@dataclass(slots=True)
class Tally:
    """The figures of one path, folded from its steps. Ratios are None while their denominator is 0."""

    steps: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    rechecked: int = 0
    latency_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    ttft_s: float | None = None
    cache_bytes: int = 0
    finish: str | None = None
    committed: list[Token] = field(default_factory=list)
    ends: list[tuple[int, float]] = field(default_factory=list)  # after each step: (tokens so far, own clock)
    first: int = 0  # tokens of the first step
    kept: list[int] = field(default_factory=list)  # kept[d]: steps that kept more than d drafted tokens

    def add(self, step: Step) -> None:
        self.latency_s += step.seconds
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        self.cache_bytes = step.cache_bytes
        self.finish = step.finish or self.finish
        if not step.tokens and not step.nodes and step.note != RECHECKED:  # part of a prefill
            return
        if self.ttft_s is None:
            self.ttft_s = self.latency_s
            self.first = len(step.tokens)
        self.steps += 1
        self.drafted += len(step.nodes)
        self.rechecked += step.note == RECHECKED
        self.tested += sum(node.outcome is not Outcome.UNTESTED for node in step.nodes)
        accepted = sum(node.outcome is Outcome.ACCEPTED for node in step.nodes)
        self.accepted += accepted
        self.kept += [0] * (accepted - len(self.kept))
        for depth in range(accepted):
            self.kept[depth] += 1
        self.committed += step.tokens
        self.ends.append((self.tokens, self.latency_s))

    @property
    def tokens(self) -> int:
        return len(self.committed)

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.committed]

    @property
    def origins(self) -> dict[Origin, int]:
        """Committed tokens by origin; "unverified" only where there are any."""
        counts = {origin: sum(token.origin is origin for token in self.committed) for origin in Origin}
        return {origin: count for origin, count in counts.items() if count or origin is not Origin.UNVERIFIED}

    @property
    def decode_tokens_per_s(self) -> float | None:
        after_first = self.latency_s - (self.ttft_s or 0.0)
        if self.tokens == self.first or after_first == 0:
            return None
        return (self.tokens - self.first) / after_first

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.tested if self.tested else None

    @property
    def tokens_per_step(self) -> float | None:
        return self.tokens / self.steps if self.steps else None

    @property
    def score(self) -> float | None:
        return sum(token.logprob for token in self.committed) / self.tokens if self.tokens else None

    @property
    def time_split(self) -> dict[str, float]:
        """Shares of the own clock, which sum to 1; empty before the first step."""
        if self.latency_s == 0:
            return {}
        other = self.latency_s - self.draft_s - self.verify_s
        parts = {"draft": self.draft_s, "verify": self.verify_s, "other": other}
        return {name: seconds / self.latency_s for name, seconds in parts.items()}

    def latency_at(self, tokens: int) -> float:
        """Own-clock seconds until at least `tokens` tokens were committed. Raises ValueError if there are fewer."""
        at = bisect_left(self.ends, tokens, key=lambda end: end[0])
        if at == len(self.ends):
            raise ValueError(f"only {self.tokens} tokens were committed, not {tokens}")
        return self.ends[at][1]


def speed_up(plain: Tally, speculative: Tally) -> float | None:
    """Plain latency over speculative latency at the same number of tokens: what the shorter answer has so far."""
    tokens = min(plain.tokens, speculative.tokens)
    latency = speculative.latency_at(tokens) if tokens else 0
    return plain.latency_at(tokens) / latency if latency else None


@dataclass(frozen=True, slots=True)
class Lossless:
    """What the comparison of both answers shows.

    "identical": all ids are equal. "diverged": `position` is the first index that differs and `margin` the target's
    top-2 logit gap there on the plain path. "same distribution": sampling, where the texts may differ.
    "incomplete": nothing speaks against it, but a path broke or was stopped (sampling: before its first token).
    "lossy": the target verified nothing.
    """

    verdict: Literal["identical", "diverged", "same distribution", "incomplete", "lossy"]
    position: int | None = None
    margin: float | None = None


def lossless(plain: Tally, speculative: Tally, greedy: bool) -> Lossless:
    """Compare two answers to the same task."""
    if speculative.origins.get(Origin.UNVERIFIED):
        return Lossless("lossy")
    finishes = {plain.finish, speculative.finish}
    if not greedy:
        begun = plain.tokens and speculative.tokens and Finish.FAILED not in finishes
        return Lossless("same distribution" if begun else "incomplete")
    for position, (ours, theirs) in enumerate(zip(plain.committed, speculative.committed, strict=False)):
        if ours.id != theirs.id:
            return Lossless("diverged", position, ours.margin)
    if finishes & {None, Finish.FAILED}:
        return Lossless("incomplete")
    if plain.tokens != speculative.tokens:
        position = min(plain.tokens, speculative.tokens)
        return Lossless(
            "diverged", position, max(plain, speculative, key=lambda t: t.tokens).committed[position].margin
        )
    return Lossless("identical")
