"""How much to draft, decided anew at every step from what passes cost and from what was accepted lately.

The aim is tokens per second of the whole answer. A step that has the choice therefore takes what is largest of
tokens - rate * seconds, where rate is what the answer makes a second so far: a second is worth the tokens that it would
bring elsewhere. (The largest tokens / seconds of each step by itself is something else: it spares seconds in steps that
are good anyway.) A tree's nodes come most probable first, so the best number of them is a maximum over the tree's
beginnings. Nodes that were drawn are never cut after they were drawn: to drop one because of its own probability would
change the distribution of the answer.
Sources: Leviathan et al. 2023, section 3.3 (tokens per second of a chain); Liu et al. 2024 (goodput), section 4;
Dinkelbach 1967 (a ratio of sums is maximised by such differences).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from time import perf_counter
from typing import Any

from specdemo.engine.drafters import Draft, Drafter

MEMORY = 0.97  # what is known counts this much beside what has just been seen
WEIGHT = 10.0  # of what is presumed before anything was seen, in the measure of what is seen
DRIFT = 0.0007  # towards the prior, at a step in which nothing was tried: who always failed is tried every tenth or so
REST = 8  # steps until the dear drafter is tried again after it did not pay; doubled each time, up to LONGEST
LONGEST = 64
BANDS = (0.25, 0.6, 1.2)  # tokens that the free drafter promises: between these borders the dear one is judged apart
GAIN = 0.5  # tokens a step that the dear drafter brings with a row more, before anything was seen
LIKELY = 1.5  # times plain decoding's tokens a second, before anything was seen
PLAIN = "plain decoding: what could be drafted here would cost more than it brings"


@dataclass(frozen=True, slots=True)
class Costs:
    """Own-clock seconds on one machine: verify[n] is a target pass over the last committed token and n drafted ones.

    More nodes than were measured cost as much more as those that were did on average.
    """

    verify: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.verify or min(self.verify) <= 0:
            raise ValueError("costs need the seconds of at least one target pass, all above 0")

    def step(self, nodes: int) -> float:
        most = len(self.verify) - 1
        if nodes <= most:
            return self.verify[nodes]
        return self.verify[most] + (nodes - most) * (self.verify[most] - self.verify[0]) / max(most, 1)


class Ratio:
    """A running ratio of two sums that forget; `prior` is what it says before anything was seen."""

    def __init__(self, prior: float, weight: float = WEIGHT) -> None:
        self._upper, self._lower, self._prior = prior * weight, weight, prior

    def learn(self, upper: float, lower: float) -> None:
        self._upper = MEMORY * self._upper + upper
        self._lower = MEMORY * self._lower + lower

    def forget(self) -> None:
        """Drift back to the prior: nothing was tried, so what is known gets old."""
        self._upper += DRIFT * (self._prior * self._lower - self._upper)

    @property
    def value(self) -> float:
        return self._upper / self._lower


class Judgement:
    """Whether the dear drafter pays where the free one promises about as much: by what it brought there lately."""

    def __init__(self, gain: float) -> None:
        self.gain = Ratio(gain)  # tokens a step beyond what the free one promised, less those that its rows are worth
        self.seconds = Ratio(0.0, 0.1)  # that it takes for a proposal
        self._idle, self._patience = 0, REST  # steps since the dear one was asked, and until it is asked again

    def pays(self, rate: float) -> bool:
        """Whether it brings more tokens than its seconds are worth; now and then it is asked all the same."""
        self._idle += 1
        if self.gain.value > rate * self.seconds.value:
            self._patience = REST
        elif self._idle < self._patience:
            return False
        else:
            self._patience = min(2 * self._patience, LONGEST)
        self._idle = 0
        return True


@dataclass(frozen=True, slots=True)
class Tried:
    """A step's choice, until it is known what became of it.

    free: what the free drafter proposed, and the tokens expected of it. length: tokens before the step.
    judged: of the dear drafter, where it was asked; seconds: that it took.
    """

    drafter: Drafter
    draft: Draft
    free: tuple[Draft, float]
    length: int
    judged: Judgement | None = None
    seconds: float = 0.0


class AutoDraft:
    """Chooses at every step between a drafter that costs next to nothing, one that runs a model, and neither.

    free: usually an n-gram model. dear: None where the pair has no draft. draws: the dear one samples its proposals.
    clock: seconds, in the measure of `costs`.
    """

    def __init__(
        self,
        free: Drafter,
        dear: Drafter | None,
        costs: Costs,
        draws: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.free, self.dear, self.costs, self.draws, self._clock = free, dear, costs, draws, clock
        self._trust = [(drafter, Ratio(1.0)) for drafter in (free, dear)]  # accepted / expected by the drafter itself
        row = (costs.step(1) - costs.step(0)) / costs.step(0)  # in target passes
        self._judged = [Judgement(GAIN - LIKELY * row) for _ in range(len(BANDS) + 1)]
        self._kept = Ratio(0.7)  # of drawn nodes, accepted / tested
        self._per_node = Ratio(0.0, 0.1)  # seconds that the dear one takes for a node
        self._made = Ratio(LIKELY / costs.step(0), WEIGHT * costs.step(0))  # tokens a second of the answer so far
        self._unread: tuple[int, ...] = ()  # the prompt, while the dear one has not read it
        self._last: Tried | None = None

    @property
    def models(self) -> Sequence[Any]:
        return self.dear.models if self.dear else self.free.models

    @property
    def table_bytes(self) -> int:
        return max(drafter.table_bytes for drafter in (self.free, self.dear) if drafter)

    @property
    def cache_bytes(self) -> int:
        return sum(drafter.cache_bytes for drafter in (self.free, self.dear) if drafter)

    def begin(self, prompt: Sequence[int]) -> None:
        self._last, self._unread = None, tuple(prompt)
        self.free.begin(prompt)

    def propose(self, tokens: Sequence[int], budget: int) -> Draft:
        self._learn(len(tokens))
        free = self._cut(self.free, self.free.propose(tokens, budget))
        tried, judged = Tried(self.free, free[0], free, len(tokens)), self._judged[bisect(BANDS, free[1])]
        if self.dear and judged.pays(self._rate()):
            dear, seconds = self._ask(self.dear, tokens, budget)
            judged.seconds.learn(seconds, 1.0)
            tried = replace(tried, judged=judged, seconds=seconds)
            if dear.tokens:
                tried = replace(tried, drafter=self.dear, draft=dear)
        self._last = tried
        return tried.draft if tried.draft.tokens else Draft(note=tried.draft.note or PLAIN)

    def _ask(self, dear: Drafter, tokens: Sequence[int], budget: int) -> tuple[Draft, float]:
        """What the dear drafter proposes, cut, and the seconds that it took."""
        if self._unread:
            dear.begin(self._unread)  # a prompt is read once it is of use, not before the first token
            self._unread = ()
        began = self._clock()
        draft = dear.propose(tokens, self._drawn(budget) if self.draws else budget)
        seconds = self._clock() - began
        self._per_node.learn(seconds, len(draft.tokens) or 1)
        return self._cut(dear, draft)[0], seconds

    def _learn(self, length: int) -> None:
        """Compare the last proposal with what became of it: all that was committed but the target's own token.

        A near-tie that was decided again lies between two proposals unseen; its token counts, its pass does not.
        """
        tried = self._last
        if tried is None:
            return
        nodes, accepted = len(tried.draft.tokens), max(length - tried.length - 1, 0)
        self._made.learn(length - tried.length, tried.seconds + self.costs.step(nodes))
        if tried.judged:
            instead, promised = tried.free
            rows = self.costs.step(nodes) - self.costs.step(len(instead.tokens))
            gain = accepted - promised - self._rate() * rows if tried.drafter is self.dear else 0.0
            tried.judged.gain.learn(gain, 1.0)
        for drafter, trust in self._trust:
            if drafter is tried.drafter and nodes:
                trust.learn(accepted, sum(tried.draft.reach()))
            else:  # not tried, or cut to nothing: who failed for a while must not be out for good
                trust.forget()
        if tried.drafter is self.dear and nodes:
            self._kept.learn(accepted, min(accepted + 1, nodes))

    def _rate(self) -> float:
        """Tokens that a second brings: at least those of plain decoding."""
        return max(self._made.value, 1 / self.costs.step(0))

    def _cut(self, drafter: Drafter, draft: Draft) -> tuple[Draft, float]:
        """The beginning of `draft` that is worth its rows in the target's pass, and how many tokens are expected of it.

        A drawn one stays whole.
        """
        trust = next(trust for known, trust in self._trust if known is drafter).value
        expected = [0.0, *accumulate(min(trust * reach, 1.0) for reach in draft.reach())]
        if draft.probs is not None:
            return draft, expected[-1]
        rate = self._rate()
        count = max(range(len(expected)), key=lambda n: expected[n] - rate * self.costs.step(n))
        return (draft.first(count) if draft.tokens else draft), expected[count]

    def _drawn(self, budget: int) -> int:
        """How many nodes to draw: the best number for a chain whose tokens are accepted as they were lately."""
        kept, each, rate = min(self._kept.value, 0.99), self._per_node.value, self._rate()

        def worth(n: int) -> float:
            return (1 - kept ** (n + 1)) / (1 - kept) - rate * (n * each + self.costs.step(n))

        return max(range(1, budget + 1), key=worth)
