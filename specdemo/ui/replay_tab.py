"""The Replay tab: a recorded race, played at its own pace or step by step. It loads no model and occupies no device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

import gradio as gr

from specdemo import shipped
from specdemo.measure.recording import Recording
from specdemo.measure.trace import Trace, TraceError, read
from specdemo.ui import events
from specdemo.ui.charts import CHARTS, blank, plots
from specdemo.ui.player import Player, near
from specdemo.ui.saving import saved
from specdemo.ui.stage import line, stage
from specdemo.ui.texts import text

log = logging.getLogger(__name__)

CHARTS_EVERY_S = 0.5
SPEEDS = [1.0, 2.0, 4.0]
# Nothing is computed, but each replay sends ten frames a second; more visitors wait for one to end.
REPLAYS: dict[str, Any] = {"concurrency_id": "replay", "concurrency_limit": 8}
STEPS: dict[str, Any] = {"concurrency_id": "replay_step", "concurrency_limit": 8}


@dataclass(frozen=True)
class Place:
    """Where a visitor's replay stands. source: a file on the server; position: steps taken."""

    source: str
    position: int = 0


# Few, so that what visitors upload does not fill the memory; another one is read again.
@lru_cache(maxsize=8)
def _trace(source: str) -> Trace:
    return read(Path(source))


class ReplayTab:
    """Handlers of the tab. They yield its outputs: the stage's log, the charts, the place, the button that saves."""

    def __init__(self) -> None:
        self._playing: dict[str, Player] = {}  # by browser session: whoever stands here owns that page's stage

    def on_shipped(self, request: gr.Request, name: str, speed: float) -> Iterator[list[Any]]:
        """Play a race that came with the demo."""
        known = shipped.names()
        if name in known:
            yield from self._play(request, Place(str(shipped.path(name))), speed)
        else:
            wrong = events.shorten(name, 80)
            yield _refusal(text("no_such_race").format(name=wrong, names=", ".join(known)))

    def on_upload(self, request: gr.Request, file: str, speed: float) -> Iterator[list[Any]]:
        """Play a file from the visitor's own machine."""
        yield from self._play(request, Place(file), speed)

    def on_play(self, request: gr.Request, place: Place | None, speed: float) -> Iterator[list[Any]]:
        """Play on from where the replay stands; from the start where that is the end."""
        yield from self._play(request, place, speed)

    def on_pause(self, request: gr.Request) -> None:
        """Pause this page's replay, if one is playing."""
        player = self._playing.get(str(request.session_hash))
        if player:
            player.stopped.set()

    def on_speed(self, request: gr.Request, speed: float) -> None:
        """Set the pace of this page's replay while it plays."""
        player = self._playing.get(str(request.session_hash))
        if player:
            player.speed = speed

    def on_next(self, request: gr.Request, place: Place | None) -> Iterator[list[Any]]:
        """One step ahead: of the path whose own clock ends its step first."""
        yield from self._step(request, place, ahead=True)

    def on_back(self, request: gr.Request, place: Place | None) -> Iterator[list[Any]]:
        """One step back."""
        yield from self._step(request, place, ahead=False)

    def _step(self, request: gr.Request, place: Place | None, ahead: bool) -> Iterator[list[Any]]:
        self._give_stage(request, None)
        try:
            trace, source, position = _opened(place)
            player = Player(trace, near(trace, position, ahead))
        except TraceError as error:
            yield _refusal(str(error))
            return
        with saved(trace) as file:
            frames = player.curves.frames()
            yield [_lines(player.standing()), *frames, Place(source, player.position), _offer(file)]

    def _play(self, request: gr.Request, place: Place | None, speed: float) -> Iterator[list[Any]]:
        try:
            trace, source, position = _opened(place)
        except TraceError as error:
            self._give_stage(request, None)
            yield _refusal(str(error))
            return
        player = Player(trace, position if position < len(trace.steps) else 0, speed)
        self._give_stage(request, player)
        frames, drawn = player.frames(), monotonic()
        told = _lines(next(frames))
        try:
            with saved(trace) as file:
                yield [told, *player.curves.frames(), Place(source, player.position), _offer(file)]
            for news in frames:
                if self._playing.get(str(request.session_hash)) is not player:
                    return  # this page plays another race by now
                told += _lines(news)
                charts: list[Any] = [gr.skip()] * len(CHARTS)
                if monotonic() - drawn > CHARTS_EVERY_S or player.standing_still:
                    charts, drawn = player.curves.frames(), monotonic()
                yield [told, *charts, Place(source, player.position), gr.skip()]
        except Exception:
            log.exception("a replay failed")
            yield _refusal(text("replay_broken"))
        finally:
            if self._playing.get(str(request.session_hash)) is player:
                self._give_stage(request, None)

    def _give_stage(self, request: gr.Request, player: Player | None) -> None:
        """Let `player` draw on this page from now on, and whoever drew there fall silent."""
        visitor = str(request.session_hash)
        before = self._playing.pop(visitor, None)
        if before:
            before.stopped.set()
        if player:
            self._playing[visitor] = player

    def build(self) -> None:
        """Lay the tab out; call it inside gr.Blocks."""
        names = shipped.names()
        place = gr.State(Place(str(shipped.path(names[0]))) if names else None)
        gr.Markdown(text("replay_about"))
        with gr.Row():
            choices = [gr.Button(_title(name), elem_id=f"replay-{name}", min_width=150) for name in names]
        with gr.Row():
            with gr.Column(scale=3, min_width=320):
                with gr.Row():
                    play = gr.Button(text("play"), variant="primary", elem_id="play", min_width=100)
                    pause = gr.Button(text("pause"), elem_id="pause", min_width=100)
                with gr.Row():
                    back = gr.Button(text("back"), elem_id="back", min_width=100)
                    ahead = gr.Button(text("next"), elem_id="next", min_width=100)
            with gr.Column(scale=2, min_width=250):
                paces = [(f"{pace:g}×", pace) for pace in SPEEDS]
                speed = gr.Radio(paces, value=SPEEDS[0], label=text("speed"), elem_id="speed")
            with gr.Column(scale=2, min_width=200):
                upload = gr.UploadButton(text("open"), elem_id="open")
                save = gr.DownloadButton(text("save"), interactive=False, elem_id="replay-save")
        turn = gr.HTML(elem_id="replay-turn", padding=False)  # empty: where Gradio writes a place in the queue
        theatre = stage(idle(), elem_id="replay-stage")
        outputs = [theatre, *plots("replay_"), place, save]
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        playing = REPLAYS | {"show_progress": "minimal", "show_progress_on": turn, "api_visibility": "private"}
        for name, choice in zip(names, choices, strict=True):
            choice.click(self.on_shipped, [gr.State(name), speed], outputs, trigger_mode="multiple", **playing)
        upload.upload(self.on_upload, [upload, speed], outputs, trigger_mode="multiple", **playing)
        play.click(self.on_play, [place, speed], outputs, **playing)
        pause.click(self.on_pause, None, None, queue=False, **quiet)
        speed.change(self.on_speed, speed, None, queue=False, **quiet)
        ahead.click(self.on_next, place, outputs, **STEPS, **quiet)
        back.click(self.on_back, place, outputs, **STEPS, **quiet)
        self._linked = {"fn": self.on_shipped, "outputs": outputs, **playing}
        self._speed = speed

    def follow(self, loaded: gr.events.Dependency, link: gr.Textbox) -> None:
        """Play the shipped race that `loaded` has written into `link`, if it has; call it outside of all tabs, of which
        only the one that is seen is there. The page clicks a button that nobody sees, so that a page without a link
        takes no place in the queue; a state's change would be told twice, and the race played twice."""
        follow = gr.Button(visible="hidden", elem_id="replay-follow")
        follow.click(inputs=[link, self._speed], **self._linked)
        loaded.then(None, link, js="(name) => { if (name) document.getElementById('replay-follow').click(); }")


def idle() -> events.Event:
    """What the stage shows before anything was played."""
    opening = events.opening(None)
    opening["strings"]["hint"] = text("replay_hint")
    return opening


def _opened(place: Place | None) -> tuple[Trace, str, int]:
    """Trace, source and position of a place. Raises TraceError where there is nothing to play."""
    if place is None:
        raise TraceError(text("replay_hint"))
    return _trace(place.source), place.source, place.position


def _refusal(words: str) -> list[Any]:
    """The outputs that show one message, with nothing to play any more."""
    told = _lines([{"e": "idle", **idle()}, events.error(words)])
    return [told, *blank(), None, gr.DownloadButton(interactive=False)]


def _offer(file: Path) -> gr.DownloadButton:
    return gr.DownloadButton(value=file, interactive=True)


def _lines(news: list[events.Event]) -> str:
    return "".join(map(line, news))


def _title(name: str) -> str:
    """A shipped race on its button: what it shows, and how it came out."""
    recording = Recording(_trace(str(shipped.path(name))))
    for path, step in recording.trace.steps:
        recording.take(path, step)
    ratio = recording.speed_up
    return text(f"race_{name}") + (f" · {ratio:.2f}×" if ratio else "")
