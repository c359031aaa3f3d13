"""A recorded race on its way to a visitor, at the pace of its own clocks; no model, nothing is computed but figures."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event as Flag
from time import monotonic

from specdemo.measure.recording import Recording, side_by_side
from specdemo.measure.trace import Trace
from specdemo.ui import events
from specdemo.ui.charts import Curves
from specdemo.ui.events import Event
from specdemo.ui.texts import text

FRAME_S = 0.1  # between two frames of events
PATIENCE_S = 0.5  # without an event before an empty frame: how soon a closed page is noticed


class Player:
    """Plays `trace` from `position`, a number of steps. Set `stopped` to pause; `speed` may change meanwhile.

    Both own clocks run side by side, so a step appears when its path's clock has reached the step's end.
    """

    def __init__(self, trace: Trace, position: int = 0, speed: float = 1.0) -> None:
        self.stopped = Flag()
        self.speed = speed
        self.recording = Recording(trace)
        self.curves = Curves(trace)
        self.position = 0
        self._steps = side_by_side(trace)
        self._shown = [events.restart(trace)]
        while self.position < min(position, len(self._steps)):
            self._shown += self._take()

    @property
    def ended(self) -> bool:
        return self.position == len(self._steps)

    @property
    def standing_still(self) -> bool:
        """Whether nothing will follow: at the end, or paused."""
        return self.ended or self.stopped.is_set()

    def standing(self) -> list[Event]:
        """Everything that a stage shows at this position."""
        return [*self._shown, *self._news()]

    def frames(self) -> Iterator[list[Event]]:
        """New events, a list about ten times a second; an empty one where nothing happens for long. The first at once.

        Ends with the race's last words, or where it was paused.
        """
        yield [*self._shown, events.status(text("replaying")), events.figures(self.recording)]
        clock = self._steps[self.position - 1][0] if self.position else 0.0
        looked = told = monotonic()
        while not self.ended and not self.stopped.wait(FRAME_S):
            now = monotonic()
            clock, looked = clock + (now - looked) * self.speed, now
            news: list[Event] = []
            while not self.ended and self._steps[self.position][0] <= clock:
                news += self._take()
            if news or now - told > PATIENCE_S:
                told = now
                yield [*news, events.figures(self.recording)] if news else []
        yield self._news()

    def _take(self) -> list[Event]:
        _, name, step = self._steps[self.position]
        self.position += 1
        self.recording.take(name, step)
        self.curves.add(name, step, self.recording.tallies[name])
        return events.taken(self.recording, name, step)

    def _news(self) -> list[Event]:
        """The figures, and what is to be said at this position when nothing moves."""
        if self.ended:
            return events.closing(self.recording)
        seen = sum(bool(step.tokens) for _, _, step in self._steps[: self.position])
        every = sum(bool(step.tokens) for _, _, step in self._steps)
        words = text("paused").format(seen=seen, steps=every)
        return [events.figures(self.recording), events.status(words)]


def near(trace: Trace, position: int, ahead: bool) -> int:
    """The position one step ahead of `position` or back; what shows nothing, part of a prefill, is no step."""
    ends = [at for at, (_, _, step) in enumerate(side_by_side(trace), 1) if step.tokens or step.finish]
    stops = [0, *ends[:-1], len(trace.steps)]
    if ahead:
        return min((at for at in stops if at > position), default=stops[-1])
    return max((at for at in stops if at < position), default=0)
