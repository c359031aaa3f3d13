"""Whether the chosen pair can work here, told before anything is loaded: the preflight, on the page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gradio as gr

from specdemo import device
from specdemo.models.embedded import FetchError
from specdemo.request import RaceRequest, RequestError
from specdemo.ui.fields import Fields
from specdemo.ui.texts import text

if TYPE_CHECKING:
    from specdemo.models.findings import Report

log = logging.getLogger(__name__)
COLUMNS = ("level", "topic", "sentence")


def build(fields: Fields, asked: Callable[..., RaceRequest], on_device: dict[str, Any]) -> None:
    """Lay it out; call it inside gr.Blocks. asked: makes a request of the fields, or raises RequestError."""
    with gr.Accordion(text("fit"), open=False):
        gr.Markdown(text("fit_about"))
        look = gr.Button(text("fit_look"), elem_id="look")
        # A textbox and a table show what a model's files say as text, never as Markdown.
        verdict = gr.Textbox(
            show_label=False, interactive=False, visible=False, lines=1, elem_id="fit", container=False
        )
        table = gr.Dataframe(
            headers=[text(f"fit_head_{name}") for name in COLUMNS],
            datatype="str",
            interactive=False,
            wrap=True,
            visible=False,
            label=text("fit"),
            column_widths=["6rem", "8rem", "auto"],
            elem_id="findings",
        )

    def on_look(*values: Any) -> list[Any]:
        try:
            request = asked(**dict(zip(fields, values, strict=True)) | {"prompt": "-"})
            report = device.submit(lambda: _look(request))
        except (RequestError, FetchError) as reason:
            return [gr.Textbox(str(reason), visible=True), gr.Dataframe(visible=False)]
        except Exception:
            log.exception("a preflight failed")
            return [gr.Textbox(text("fit_broken"), visible=True), gr.Dataframe(visible=False)]
        return [gr.Textbox(sentence(report), visible=True), gr.Dataframe(rows(report), visible=True)]

    look.click(on_look, list(fields.values()), [verdict, table], api_visibility="private", **on_device)


def sentence(report: Report) -> str:
    """The outcome in one sentence."""
    models = f"{report.target} + {report.draft}" if report.draft else report.target
    if report.refusal is None:
        return text("fit_usable").format(models=models)
    return text("fit_refused").format(models=models, reason=report.refusal)


def rows(report: Report) -> list[list[str]]:
    """The findings as a table's cells."""
    return [[str(finding.level), finding.topic, finding.sentence] for finding in report.findings]


def _look(request: RaceRequest) -> Report:
    from specdemo.models.load import resolve_dtype
    from specdemo.models.preflight import preflight
    from specdemo.run import named

    pair, quantization = named(request)
    return preflight(pair, resolve_dtype(request.dtype, device.pick()), quantization)
