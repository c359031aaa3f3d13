"""One race on its way to a visitor: request in, frames of events out, whoever the visitor is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import gradio as gr

from specdemo import device
from specdemo.config import Settings
from specdemo.request import RaceRequest, RequestError, checked
from specdemo.ui import events
from specdemo.ui.charts import Curves
from specdemo.ui.events import Event
from specdemo.ui.texts import text
from specdemo.ui.warmup import Warmup

if TYPE_CHECKING:
    from specdemo.run import Run, Taken

log = logging.getLogger(__name__)


class Refusal(str):
    """Why a request cannot be raced, as a value: where `play` runs in another process, no exception of ours returns."""


Played = Generator["Run | Taken | Refusal", None, None]
Play = Callable[[RaceRequest], Played]


def play(request: RaceRequest) -> Played:
    """One whole race, both paths: first the run, then each step; or a Refusal alone.

    This is what ZeroGPU runs in a forked process that has the GPU, so what goes in and comes out can be pickled, and
    a run that came out is a copy. Closing the generator stops the race after the step under way.
    """
    from specdemo.run import started

    try:
        run = started(request, Flag())
    except RequestError as reason:
        yield Refusal(reason)
        return
    yield run
    yield from run.taken()


class Show:
    """Set `cancelled` to stop; run and curves are None until the models are there.

    values: the fields of a request as they came, unchecked; what is None is what the page shows first. draft: a local
    draft that replaces the pair's own. play: who races; `play` itself, or a wrapper that runs it elsewhere.
    """

    def __init__(
        self, values: dict[str, Any], settings: Settings, warmup: Warmup, draft: str | None, play: Play = play
    ) -> None:
        self.cancelled = Flag()
        self.run: Run | None = None
        self.curves: Curves | None = None
        self._values = settings.defaults.model_dump() | {k: value for k, value in values.items() if value is not None}
        self._settings = settings
        self._warmup = warmup
        self._draft = draft
        self._play = play

    def frames(self, settle_s: float = 0.0) -> Iterator[list[Event]]:
        """The events of the race, a list about ten times a second, often empty; the first at once.

        settle_s: as of device.batches. A failure is an "error" event at the end, in words for the visitor; nothing is
        raised.
        """
        yield [events.start(self._values.get("mode")), events.status(text("waiting"))]
        try:
            request = self.request()
            words = text("waiting")
            for batch in device.batches(lambda: self._perform(request), self.cancelled, settle_s):
                now = text("running") if self.run else self._warmup.words or text("loading")
                news = [*batch, events.figures(self.run)] if self.run and batch else batch
                if now != words:
                    news = [events.status(now), *news]
                    words = now
                yield news
                if self.cancelled.is_set() and not self.run:
                    break  # what is being loaded goes on behind the page; nobody waits for it
            yield events.closing(self.run) if self.run else [events.error(text("stopped_early"))]
        except RequestError as reason:
            yield [events.error(str(reason))]
        except gr.Error as reason:
            # Of ZeroGPU, in its words: no GPU is free, or the visitor's time for the day is used up.
            yield [events.error(str(reason.message))]
        except Exception:
            log.exception("a race failed")
            yield [events.error(text("broken"))]

    def request(self) -> RaceRequest:
        """What was asked for, checked; a draft that a visitor names goes before the server's. Raises RequestError."""
        values = self._values | {"draft": self._values.get("draft") or self._draft}
        return checked(self._settings.limits, self._settings.pairs, **values)

    def _perform(self, request: RaceRequest) -> Iterator[Event]:
        """Runs on the device's thread; what is done here between steps is in no path's clock."""
        from specdemo.run import Run, Taken

        self._warmup.fetched.wait()  # no lent GPU is spent on a download, and no process forked in the midst of one
        with closing(self._play(request)) as played:
            run = next(played)
            if not isinstance(run, Run):
                raise RequestError(str(run))
            self.run = run
            self.curves = Curves(run.trace)
            for taken in played:
                if self.cancelled.is_set():
                    return
                assert isinstance(taken, Taken)
                run.add(taken)
                self.curves.add(taken.path, taken.step, run.tallies[taken.path])
                yield from events.taken(run, taken.path, taken.step)
