"""Whether the chosen pair can work here, told before anything is loaded: the preflight, on the page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gradio as gr

from specdemo import device
from specdemo.request import RaceRequest, RequestError
from specdemo.ui.fields import Fields
from specdemo.ui.texts import text

log = logging.getLogger(__name__)
MARKS = {"ok": "✓", "warning": "!", "refusal": "✗"}


def build(fields: Fields, asked: Callable[..., RaceRequest], on_device: dict[str, Any]) -> None:
    """Lay it out; call it inside gr.Blocks. asked: makes a request of the fields, or raises RequestError."""
    with gr.Accordion(text("fit"), open=False):
        gr.Markdown(text("fit_about"))
        look = gr.Button(text("fit_look"), elem_id="look")
        turn = gr.HTML(elem_id="fit-turn", padding=False)  # empty: where Gradio writes a place in the queue
        # A textbox shows what a model's files say as text, never as Markdown.
        found = gr.Textbox(label=text("fit_found"), interactive=False, visible=False, max_lines=20, elem_id="fit")

    def on_look(*values: Any) -> Any:
        try:
            request = asked(**dict(zip(fields, values, strict=True)) | {"prompt": "-"})
            words = device.submit(lambda: told(request))
        except RequestError as reason:
            words = str(reason)
        except Exception:
            log.exception("a preflight failed")
            words = text("fit_broken")
        return gr.Textbox(words, visible=True)

    look.click(
        on_look, list(fields.values()), found, show_progress="minimal", show_progress_on=[turn],
        api_visibility="private", **on_device,
    )  # fmt: skip


def told(request: RaceRequest) -> str:
    """The outcome in one sentence, then every finding on a line of its own."""
    from specdemo.models.load import resolve_dtype
    from specdemo.models.preflight import preflight
    from specdemo.run import named

    pair, quantization = named(request)
    report = preflight(pair, resolve_dtype(request.dtype, device.pick()), quantization)
    models = pair.title if request.draft is None else f"{pair.title} + {request.draft}"
    words = text("fit_usable") if report.refusal is None else text("fit_refused")
    lines = (f"{MARKS[finding.level]} {finding.topic}: {finding.sentence}" for finding in report.findings)
    return "\n".join([words.format(models=models, reason=report.refusal), "", *lines])
