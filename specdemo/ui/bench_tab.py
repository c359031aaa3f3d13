"""The Benchmark tab: a set of prompts in several modes and precisions, as tables, plots and files."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from threading import Event as Flag
from time import monotonic
from typing import Any, get_args

import gradio as gr

from specdemo import device
from specdemo.config import LENGTHS, Dtype, Precision, Settings
from specdemo.measure.results import BenchError, Book, Plan, Prompt, Row, is_peer, prompt_set, read_prompts, results
from specdemo.measure.results import peers as peers_of
from specdemo.models.pairs import PAIRS
from specdemo.request import RequestError, checked
from specdemo.ui import events
from specdemo.ui.bench_results import FILES, blank, components, progress, shown, written
from specdemo.ui.fields import modes
from specdemo.ui.texts import text
from specdemo.ui.visitor import is_local

log = logging.getLogger(__name__)

PLOTS_EVERY_S = 2.0
SETTLE_S = 2.0  # seconds that a browser here may take to draw them, before the next answer is measured
MAX_FILE_BYTES = 1_000_000
SETS = ("article", "own")


class BenchTab:
    """Handlers of the tab. draft: a local draft that replaces the pair's own, chosen by whoever serves the page."""

    def __init__(self, settings: Settings, draft: str | None, on_device: dict[str, Any]) -> None:
        self.settings = settings
        self.draft = draft
        self.on_device = on_device
        self._running: dict[str, Flag] = {}  # by browser session

    def on_page(self, request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        """Yields the outputs of the page: progress, tables, plots, files."""
        cancelled = Flag()
        visitor = str(request.session_hash)
        book: Book | None = None
        asked = dict(zip(self.fields, values, strict=True))
        prompts = Path(asked["file"] or "FILE").name if asked["chosen"] == "file" else asked["chosen"]
        try:
            self._running[visitor] = cancelled
            yield [text("waiting"), *blank(), *(gr.DownloadButton(interactive=False) for _ in FILES)]
            plan, wrong = self._plan(**asked)
            book = Book(plan, {})
            words = yield from self._measure(plan, book, wrong, cancelled, SETTLE_S if is_local(request) else 0.0)
            yield from _saved(words, book, prompts)
        except (RequestError, BenchError) as reason:
            yield from _saved(str(reason), book, prompts)
        except Exception:
            log.exception("a benchmark failed")
            yield from _saved(text("bench_broken"), book, prompts)
        finally:
            cancelled.set()
            self._running.pop(visitor, None)

    def _measure(
        self, plan: Plan, book: Book, wrong: list[str], cancelled: Flag, settle_s: float
    ) -> Generator[list[Any], None, str]:
        """Yields the frames meanwhile; returns the last words."""
        total, began, drawn = plan.answers, monotonic(), 0.0
        for news in device.batches(lambda: self._rows(plan, book, cancelled), cancelled, settle_s):
            results: list[Any] = [gr.skip()] * len(blank())
            if news and monotonic() - drawn > PLOTS_EVERY_S:
                results, drawn = _results(book), monotonic()
            words = progress(len(book.rows), total, monotonic() - began)
            yield [words, *results, *([gr.skip()] * len(FILES))]
            if cancelled.is_set() and not news:
                break  # what is being loaded goes on behind the page; nobody waits for it
        words = text("bench_done" if len(book.rows) == total else "bench_stopped").format(
            done=len(book.rows), total=total
        )
        if wrong:
            words += " " + text("bench_left_out").format(lines="; ".join(wrong[:5]))
        return words

    def _rows(self, plan: Plan, book: Book, cancelled: Flag) -> Iterator[Row]:
        """Runs on the device's thread, imports included: the warm-up may be importing transformers on it just then, and
        two threads that do so at once find half a module."""
        from specdemo.bench import bench

        return bench(plan, book, self.settings.limits, self.settings.pairs, cancelled)

    def on_stop(self, request: gr.Request) -> bool:
        """Ask this page's benchmark to end. Returns whether none is under way, so that only the queue can hold one."""
        flag = self._running.get(str(request.session_hash))
        if flag:
            flag.set()
        return flag is None

    def benchmark(
        self,
        prompts: list[str],
        modes: list[str],
        dtypes: list[str] | None = None,
        quantizations: list[str] | None = None,
        draft_length: int | None = None,
        max_new_tokens: int | None = None,
        repeats: int = 1,
        peers: bool = False,
        pair: str | None = None,
    ) -> Iterator[dict]:
        """Measure every prompt in every mode, plain decoding first; ends with rows, averages and the machine.

        Until then it tells how many answers are done. What is not given is what the page shows first.
        """
        from specdemo.measure.advisor import advice
        from specdemo.measure.machine import machine
        from specdemo.measure.report import averages

        if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
            raise gr.Error("prompts: give a list of texts", print_exception=False)
        cancelled = Flag()
        defaults = self.settings.defaults
        named = [Prompt(f"prompt {i}", "text", prompt) for i, prompt in enumerate(prompts, 1)]
        try:
            tokens = defaults.max_new_tokens if max_new_tokens is None else max_new_tokens  # 0 is refused, not replaced
            pair = defaults.pair if pair is None else pair
            plan = self._checked(named, modes, dtypes or [defaults.dtype], quantizations or [defaults.quantization],
                                 draft_length, tokens, repeats, peers, pair)  # fmt: skip
            book = Book(plan, {})
            for _ in device.batches(lambda: self._rows(plan, book, cancelled), cancelled, settle_s=0.0):
                # Whoever asked may go away meanwhile: then nothing more is measured.
                yield {"done": len(book.rows), "of": plan.answers}
        except (RequestError, BenchError) as reason:
            raise gr.Error(str(reason), print_exception=False) from None
        overall = averages(book.rows)
        here = machine(device.pick())
        yield {"rows": results(book.rows), "averages": overall, "advice": advice(overall), "machine": here}

    def _plan(self, chosen: str, file: str | None, **rest: Any) -> tuple[Plan, list[str]]:
        """The plan of the page's fields, and what is wrong with the lines of an uploaded file."""
        if chosen != "file":
            return self._checked(prompt_set(chosen), **rest), []
        if file is None:
            raise RequestError(text("bench_no_file"))
        path = Path(file)
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RequestError(text("bench_too_large").format(most=MAX_FILE_BYTES // 1000))
        try:
            prompts, wrong = read_prompts(path.read_text("utf-8-sig"), path.suffix.lower() == ".jsonl")
        except UnicodeDecodeError as error:
            raise RequestError(text("bench_no_text")) from error
        if not prompts:
            raise RequestError(text("bench_no_prompts") + (f" ({wrong[0]})" if wrong else ""))
        return self._checked(prompts, **rest), wrong

    def _checked(
        self,
        prompts: Sequence[Prompt],
        modes: Sequence[str],
        dtypes: Sequence[str],
        quantizations: Sequence[str],
        draft_length: int | None,
        max_new_tokens: int,
        repeats: int,
        peers: bool,
        pair: str,
    ) -> Plan:
        """A plan within the limits of this page. Raises RequestError with what to change."""
        if not prompts:
            raise RequestError("prompts: give at least one")
        if not isinstance(repeats, int) or not 1 <= repeats <= self.settings.limits.max_bench_repeats:
            raise RequestError(f"repeats: give a whole number from 1 to {self.settings.limits.max_bench_repeats}")
        if draft_length is not None and not isinstance(draft_length, int):
            raise RequestError("draft_length: give a whole number, or leave it out")
        for name, values in (("modes", modes), ("dtypes", dtypes), ("quantizations", quantizations)):
            if not isinstance(values, list | tuple) or not values or not all(isinstance(v, str) for v in values):
                raise RequestError(f"{name}: choose at least one")
        most_drafted = self.settings.limits.max_draft_length
        own = () if max(LENGTHS.values()) <= most_drafted else (most_drafted,)
        settings = {"pair": pair, "max_new_tokens": max_new_tokens, "draft": self.draft}
        plan = Plan(
            tuple(prompts),
            tuple(dict.fromkeys([*modes, *(peers_of(pair, None, self.draft) if peers else ())])),
            tuple(dict.fromkeys(dtypes)),
            tuple(dict.fromkeys(quantizations)),
            (draft_length,) if draft_length else own,
            repeats,
            settings,
        )
        limits = self.settings.limits
        strange = [name for name in plan.modes if is_peer(name) and name not in peers_of(pair, None, self.draft)]
        if strange:
            raise RequestError(f"modes: {events.shorten(strange[0], 60)} is not measured here")
        if plan.answers > limits.max_bench_answers:
            raise RequestError(text("bench_too_many").format(answers=plan.answers, most=limits.max_bench_answers))
        ways = max(len(list(heat)) for _, heat in groupby(plan.cases(), key=lambda case: case.heat))
        if ways > limits.max_bench_ways:  # all of them hold a cache at the same time
            raise RequestError(text("bench_too_wide").format(ways=ways, most=limits.max_bench_ways))
        tokens = plan.answers * checked(limits, self.settings.pairs, prompt="-", pair=pair,
                                        max_new_tokens=max_new_tokens).max_new_tokens  # fmt: skip
        if tokens > limits.max_bench_tokens:
            raise RequestError(text("bench_too_long").format(tokens=tokens, most=limits.max_bench_tokens))
        return plan

    def build(self) -> None:
        """Lay the tab out; call it inside gr.Blocks."""
        self.fields, run, stop, buttons = self._controls()
        status = gr.Textbox(text("bench_idle"), label=text("bench_progress"), interactive=False, elem_id="bench-status")
        turn = gr.HTML(elem_id="bench-turn", padding=False)  # empty: where Gradio writes a place in the queue
        outputs = components()
        started = run.click(
            self.on_page,
            list(self.fields.values()),
            [status, *outputs, *buttons],
            show_progress="minimal",
            show_progress_on=[turn],
            api_visibility="private",
            trigger_mode="once",
            **self.on_device,
        )
        leave = gr.Button(visible="hidden", elem_id="bench-leave")  # a queued one is left on a click; see race_tab
        leave.click(None, cancels=[started], queue=False)
        waits = gr.Checkbox(visible="hidden")
        stop.click(self.on_stop, None, waits, queue=False, show_progress="hidden", api_visibility="private").then(
            None, waits, js="(waits) => { if (waits) document.getElementById('bench-leave').click(); }"
        )
        gr.api(self.benchmark, api_name="benchmark", **self.on_device)

    def _controls(self) -> tuple[dict[str, Any], gr.Button, gr.Button, list[gr.DownloadButton]]:
        """What is asked, by name; Run, Stop, and what saves the results."""
        defaults, limits = self.settings.defaults, self.settings.limits
        gr.Markdown(text("bench_about"))
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                with gr.Row():
                    chosen = gr.Radio(
                        [(text(f"bench_set_{name}"), name) for name in (*SETS, "file")], value="article",
                        label=text("bench_prompts"), elem_id="bench-set",
                    )  # fmt: skip
                    file = gr.File(
                        label=text("bench_file"), file_types=[".txt", ".jsonl"], height=170, elem_id="bench-file"
                    )
                offered = modes(self.settings, self.draft is not None)
                mode = gr.CheckboxGroup(offered, value=[defaults.mode, "ngram"], label=text("mode"))
                pair = gr.Dropdown(
                    [(PAIRS[name].title, name) for name in self.settings.pairs], value=defaults.pair, label=text("pair")
                )
                with gr.Row():
                    dtype = gr.CheckboxGroup(list(get_args(Dtype)), value=[defaults.dtype], label=text("dtype"))
                    quantization = gr.CheckboxGroup(
                        list(get_args(Precision)), value=[defaults.quantization], label=text("quantization")
                    )
                with gr.Row():
                    length = gr.Slider(
                        0, limits.max_draft_length, 0, step=1, label=text("draft_length"),
                        info=text("bench_length_info"),
                    )  # fmt: skip
                    tokens = gr.Slider(
                        min(16, limits.max_new_tokens // 2), limits.max_new_tokens, min(200, limits.max_new_tokens),
                        step=1, label=text("max_new_tokens"), elem_id="bench-tokens",
                    )  # fmt: skip
                    repeats = gr.Slider(1, limits.max_bench_repeats, 1, step=1, label=text("bench_repeats"))
                    peers = gr.Checkbox(False, label=text("bench_peers"), info=text("bench_peers_info"))
            with gr.Column(scale=1, min_width=180):
                run = gr.Button(text("run"), variant="primary", size="lg", elem_id="bench-run")
                stop = gr.Button(text("stop"), variant="stop", size="lg", elem_id="bench-stop")
                buttons = [
                    gr.DownloadButton(text(f"bench_{name}"), size="sm", interactive=False, elem_id=f"bench-{name}")
                    for name in FILES
                ]
        fields = {
            "chosen": chosen, "file": file, "modes": mode, "dtypes": dtype, "quantizations": quantization,
            "draft_length": length, "max_new_tokens": tokens, "repeats": repeats, "peers": peers, "pair": pair,
        }  # fmt: skip
        file.upload(lambda: "file", None, chosen, queue=False, show_progress="hidden", api_visibility="private")
        return fields, run, stop, buttons


def _saved(words: str, book: Book | None, prompts: str) -> Iterator[list[Any]]:
    """The last frame: everything that was measured, and the files, which Gradio copies while they are yielded."""
    from specdemo.measure.machine import machine

    if book is None or not book.rows:
        yield [words, *_results(book), *([gr.skip()] * len(FILES))]
        return
    with written(book, machine(device.pick()), prompts) as files:
        yield [words, *_results(book), *(gr.DownloadButton(value=file, interactive=True) for file in files)]


def _results(book: Book | None) -> list[Any]:
    return shown(book.rows) if book and book.rows else blank()
