"""The stage: one ``gr.HTML`` on which a race is drawn, token by token.

Its value is an append-only log of JSON lines, so that Gradio sends only the tail of each update.
The scripts beside this file read new lines and draw them with ``textContent``; what a model or a
user wrote is never a template, an attribute that is parsed, or HTML. The lines are described in
``stage.js``; ``line`` makes one of them. This module knows no engine types and no figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import gradio as gr

# The stage's own words, in English. A "start" line may replace any of them in its "strings".
TEXTS = {
    "hint": "Press Run: the answer streams here, token by token.",
    "running": "running",
    "tokens": "tokens",
    "written_by": "Written by",
    "show_rejected": "Show rejected drafts",
    "figure": "Figure",
    "finish_length": "length reached",
    "finish_eos": "end of text",
    "finish_cancelled": "stopped",
    "finish_failed": "failed",
    "details": "Step details",
    "close": "Close",
    "step": "Step",
    "token": "Token",
    "origin": "Written by",
    "logprob": "Log-probability (target)",
    "own_clock": "Own clock",
    "took": "Step took",
    "draft": "Draft",
    "verify": "Verify",
    "other": "Other",
    "drafted": "Drafted in this step",
    "nothing_drafted": "Nothing was drafted in this step.",
    "drafted_by": "Drafted by",
    "p": "p (target)",
    "q": "q (drafter)",
    "outcome": "Outcome",
    "accepted": "accepted",
    "rejected": "rejected",
    "untested": "untested",
}

# The template holds no placeholder, and neither the text nor the style of the stage passes through
# Gradio's templates: those are compiled again on every update, and treat "${...}" as code.
_TEMPLATE = '<div class="specdemo-stage"></div>'

# These characters occur only inside JSON strings, so they may be escaped anywhere in a line. Should a
# log ever land in HTML or in a template by mistake, it is inert there.
_INERT = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&`$\x7f"})

# Gradio looks for this marker in every string it passes on, and may replace what follows it.
_I18N_MARKER = "__i18n__"


def stage(opening: Mapping[str, Any] | None = None, **kwargs: Any) -> gr.HTML:
    """Build the component; call it inside ``gr.Blocks``.

    ``opening`` takes the fields of a "start" line (labels, scoreboard, legend, strings) and is shown
    until the first run, with a hint in both panes. Further arguments go to ``gr.HTML``.
    """
    here = files(__package__)
    style = here.joinpath("stage.css").read_text(encoding="utf-8")
    names = ("stage_pane.js", "stage_details.js", "stage.js")
    script = "".join(here.joinpath(name).read_text(encoding="utf-8") for name in names)
    kwargs.setdefault("value", line({"e": "idle", **(opening or {})}))
    return gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=f"const STYLE = {json.dumps(style)};\nconst TEXTS = {json.dumps(TEXTS)};\n{script}",
        apply_default_css=False,
        **kwargs,
    )


def line(event: Mapping[str, Any]) -> str:
    """One line of the log: ASCII JSON with its newline, inert in HTML and in templates.

    Lone surrogates survive as escapes. JSON has no infinities and no NaN: they become null.
    """
    try:
        text = json.dumps(event, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(event), allow_nan=False, separators=(",", ":"))
    return text.translate(_INERT).replace(_I18N_MARKER, "\\u005f_i18n__") + "\n"


def _finite(value: Any) -> Any:
    """The same value with every float that JSON cannot write replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
