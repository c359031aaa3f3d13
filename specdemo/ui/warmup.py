"""Getting ready behind the page: fetch what is missing, load what the page shows first, and say how far it is."""

from __future__ import annotations

from functools import partial
from threading import Event, Thread
from typing import Any

from specdemo import device
from specdemo.config import Settings
from specdemo.models import embedded
from specdemo.models.pairs import PAIRS
from specdemo.ui.texts import text


class Warmup:
    """Starts at once on a thread of its own that ends by itself. `words` says what is going on, "" when ready.

    `fetched` is set once the weights are there, or cannot be had. fetch_only: races run in another process, which loads
    the pair itself.
    """

    def __init__(self, settings: Settings, draft: str | None, fetch_only: bool = False) -> None:
        self.words = text("loading")
        self.fetched = Event()
        self._embedded = settings.own_models or any(PAIRS[name].target == "embedded" for name in settings.pairs)
        first = settings.defaults
        what = {"pair": first.pair, "dtype": first.dtype, "quantization": first.quantization, "draft": draft}
        self._load = None if fetch_only else what
        self._thread = Thread(target=self._work, name="warmup", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            try:
                if self._embedded:
                    embedded.fetch(self._tell)
            finally:
                self.fetched.set()
            self.words = text("loading")
            if self._load:
                device.submit(partial(self._load_pair, **self._load))
            self.words = ""
        except Exception as error:  # told on the page; a race tries again and reports its own failure
            self.words = str(error)

    def _tell(self, stage: str, done: float) -> None:
        self.words = f"{stage}: {done:.0%}"

    def _load_pair(self, **what: Any) -> None:
        from specdemo.request import RaceRequest
        from specdemo.run import load_for

        load_for(RaceRequest(prompt="-", **what))
