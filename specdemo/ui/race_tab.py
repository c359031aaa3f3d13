"""The Race tab: one prompt, two paths, one picture; and the same race as API endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event as Flag
from time import monotonic
from typing import Any

import gradio as gr

from specdemo.config import Settings
from specdemo.ui import events, fit
from specdemo.ui.charts import CHARTS, blank, plots
from specdemo.ui.fields import Fields, fields
from specdemo.ui.saving import saved
from specdemo.ui.show import Play, Show, play
from specdemo.ui.stage import line, stage
from specdemo.ui.texts import EXAMPLES, text
from specdemo.ui.visitor import is_local
from specdemo.ui.warmup import Warmup

CHARTS_EVERY_S = 0.5
SETTLE_S = 1.0  # seconds that a browser here may take to draw a frame, before the race goes on
DEVICE = {"concurrency_id": "device", "concurrency_limit": 1}  # one race at a time; the others queue


class RaceTab:
    """Handlers of the tab. draft: a local draft that replaces the pair's own, chosen by whoever serves the page.

    play: who races.
    """

    def __init__(self, settings: Settings, warmup: Warmup, draft: str | None, play: Play = play) -> None:
        self.settings = settings
        self.warmup = warmup
        self.draft = draft
        self.play = play
        self.fields: Fields = {}  # by name, once built
        self._running: dict[str, Flag] = {}  # by browser session: how Stop reaches the race of its own page

    def show(self, **values: Any) -> Show:
        return Show(values, self.settings, self.warmup, self.draft, self.play)

    def on_page(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Yields the outputs of the page: the stage's log, the charts, the button that saves the trace."""
        show = self.show(**dict(zip(self.fields, values, strict=True)))
        visitor = str(request.session_hash)
        log, drawn = "", monotonic()
        charts: list[Any] = blank()
        save: Any = gr.DownloadButton(interactive=False)  # it still holds the race before this one
        try:
            self._running[visitor] = show.cancelled
            for news in show.frames(SETTLE_S if is_local(request) else 0.0):
                log += "".join(map(line, news))
                # With news the device rests; without, a step is under way and is writing the curves.
                if news and show.curves and monotonic() - drawn > CHARTS_EVERY_S:
                    charts, drawn = show.curves.frames(), monotonic()
                yield [log, *charts, save, gr.skip()]  # the same log is no news; after a skip all of it would be sent
                save = gr.skip()
                charts = [gr.skip()] * len(CHARTS)
            if show.run and show.curves:
                yield from self._parting(show)
        finally:
            self._running.pop(visitor, None)

    def _parting(self, show: Show) -> Iterator[list[Any]]:
        """The last frame: whole charts, and the trace as a file, which Gradio copies while it is yielded."""
        assert show.run and show.curves
        with saved(show.run.trace) as file:
            button = gr.DownloadButton(value=file, interactive=True)
            yield [gr.skip(), *show.curves.frames(), button, gr.skip()]

    def on_stop(self, request: gr.Request) -> bool:
        """Ask this page's race to end. Returns whether it has none under way, so that only the queue can hold one."""
        flag = self._running.get(str(request.session_hash))
        if flag:
            flag.set()
        return flag is None

    def race(
        self,
        prompt: str,
        mode: str | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        quantize: str = "target",
        double_quantization: bool = False,
        draft_length: int | None = None,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        stop: list[str] | None = None,
        exact: bool = False,
        seed: int = 42,
        chat_template: bool = True,
        pair: str | None = None,
    ) -> Iterator[str]:
        """Race the plain and the speculative path over a prompt; streams a log of JSON lines that only grows.

        What is not given is what the page shows first.
        "e" is the kind of a line: start, status, step (one target pass of one side, its tokens with their origins),
        figures, verdict, end, error. An error says what to change and is the last line.
        """
        values = {name: value for name, value in locals().items() if name != "self"}
        # A string, not a list of objects: Gradio streams differences, and those of nested lists it can get wrong.
        log = ""
        for news in self.show(**values).frames():
            if news:
                log += "".join(map(line, news))
                yield log

    def race_once(
        self,
        prompt: str,
        mode: str | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        quantize: str = "target",
        double_quantization: bool = False,
        draft_length: int | None = None,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        stop: list[str] | None = None,
        exact: bool = False,
        seed: int = 42,
        chat_template: bool = True,
        pair: str | None = None,
    ) -> dict:
        """Race the plain and the speculative path over a prompt; returns both answers and all figures at the end.

        What is not given is what the page shows first.
        """
        values = {name: value for name, value in locals().items() if name != "self"}
        show = self.show(**values)
        last = [news for news in show.frames() if news][-1][-1]
        if last["e"] == "error":
            raise gr.Error(last["text"], print_exception=False)
        assert show.run
        return show.run.result()

    def build(self) -> None:
        """Lay the tab out; call it inside gr.Blocks."""
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                prompt = gr.Textbox(
                    EXAMPLES[0],  # so that a first click on Run already shows a race
                    label=text("prompt"),
                    placeholder=text("prompt_placeholder"),
                    lines=3,
                    max_lines=8,
                    autofocus=True,
                    elem_id="prompt",
                )
                gr.Examples(EXAMPLES, prompt, label=text("examples"))
            with gr.Column(scale=1, min_width=180):
                run = gr.Button(text("run"), variant="primary", size="lg", elem_id="run")
                stop = gr.Button(text("stop"), variant="stop", size="lg", elem_id="stop")
                save = gr.DownloadButton(text("save"), size="sm", interactive=False, elem_id="save")
        self.fields = {"prompt": prompt, **fields(self.settings, self.draft is not None)}
        if self.play is play:  # where a GPU is lent for each race, none is here to look at
            fit.build(self.fields, lambda **values: self.show(**values).request(), DEVICE)
        turn = gr.HTML(elem_id="turn", padding=False)  # empty: where Gradio writes a visitor's place in the queue
        self.theatre = theatre = stage(events.opening(self.settings.defaults.mode), elem_id="stage")
        charts = plots()
        started = gr.on(
            [run.click, prompt.submit],
            self.on_page,
            list(self.fields.values()),
            [theatre, *charts, save, turn],
            show_progress="minimal",
            show_progress_on=[turn],
            api_visibility="private",
            trigger_mode="once",
            **DEVICE,
        )
        # A race under way ends by itself, with its last words; one that still waits in the queue is cancelled. Gradio
        # hears a cancellation on a click only, not on a .then, so the page clicks a button that nobody sees.
        leave = gr.Button(visible="hidden", elem_id="leave")
        leave.click(None, cancels=[started], queue=False)
        waits = gr.Checkbox(visible="hidden")
        stop.click(self.on_stop, None, waits, queue=False, show_progress="hidden", api_visibility="private").then(
            None, waits, js="(waits) => { if (waits) document.getElementById('leave').click(); }"
        )
        gr.api(self.race, api_name="race", **DEVICE)
        gr.api(self.race_once, api_name="race_once", **DEVICE)
