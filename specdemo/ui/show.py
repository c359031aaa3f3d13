"""One race on its way to a visitor: request in, frames of events out, whoever the visitor is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

from specdemo import device
from specdemo.config import Settings
from specdemo.models.embedded import FetchError
from specdemo.request import RaceRequest, RequestError, checked
from specdemo.ui import events
from specdemo.ui.charts import Curves
from specdemo.ui.events import Event
from specdemo.ui.texts import text
from specdemo.ui.warmup import Warmup

if TYPE_CHECKING:
    from specdemo.run import Run

log = logging.getLogger(__name__)


class Show:
    """Set `cancelled` to stop; run and curves are None until the models are there.

    values: the fields of a request as they came, unchecked. draft: a local draft that replaces the pair's own.
    """

    def __init__(self, values: dict[str, Any], settings: Settings, warmup: Warmup, draft: str | None) -> None:
        self.cancelled = Flag()
        self.run: Run | None = None
        self.curves: Curves | None = None
        self._values = values
        self._settings = settings
        self._warmup = warmup
        self._draft = draft

    def frames(self, drawn_here: bool = False) -> Iterator[list[Event]]:
        """The events of the race, a list about ten times a second, often empty; the first at once.

        drawn_here: a browser on this machine draws them. A failure is an "error" event at the end, in words for the
        visitor; nothing is raised.
        """
        yield [events.start(self._values.get("mode")), events.status(text("waiting"))]
        try:
            request = checked(self._settings.limits, self._settings.pairs, **self._values, draft=self._draft)
            words = text("waiting")
            for batch in device.batches(lambda: self._perform(request), self.cancelled, drawn_here):
                now = text("running") if self.run else self._warmup.words or text("loading")
                news = [*batch, events.figures(self.run.tallies)] if self.run and batch else batch
                if now != words:
                    news = [events.status(now), *news]
                    words = now
                yield news
            yield events.closing(self.run) if self.run else [events.error(text("stopped_early"))]
        except (RequestError, FetchError) as reason:
            yield [events.error(str(reason))]
        except Exception:
            log.exception("a race failed")
            yield [events.error(text("broken"))]

    def _perform(self, request: RaceRequest) -> Iterator[Event]:
        """Runs on the device's thread; what is done here between steps is in no path's clock."""
        from specdemo.run import Run, load_for

        self.run = run = Run(request, load_for(request), self.cancelled)
        self.curves = Curves(run.trace)
        for name, step in run:
            self.curves.add(name, step, run.tallies[name])
            if step.tokens:
                yield events.step(run, name, step)
