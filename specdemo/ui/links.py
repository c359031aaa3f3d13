"""What a link presets: ?prompt=...&mode=... fills the Race tab, ?replay=NAME plays a recorded race. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from specdemo.config import Settings
from specdemo.request import RequestError, checked
from specdemo.ui import events
from specdemo.ui.fields import suits
from specdemo.ui.stage import line
from specdemo.ui.texts import text

# Of the replay, of Gradio, and of those who count where a visitor comes from.
NOT_OURS = ("replay", "view", "logs", "deep_link", "fbclid", "gclid")
NOT_OURS_BEGIN = ("__", "utm_")
NEVER = ("target", "draft")  # a link must not choose what is downloaded to somebody's machine
NAME, MESSAGES = 40, 5  # characters of a stranger's parameter, and complaints, that are shown

Fields = Mapping[str, gr.components.Component]


def presets(parameters: Mapping[str, str], settings: Settings, fields: Fields) -> tuple[dict[str, Any], list[str]]:
    """The values that a link gives to fields of the Race tab, and what is wrong with the parameters left out."""
    values: dict[str, Any] = {}
    left = [name for name in parameters if name not in NOT_OURS and not name.startswith(NOT_OURS_BEGIN)]
    wrong: dict[str, str] = {}
    for _ in range(2):  # a value may need one behind it: double quantization is of nf4 only
        for name in left:
            try:
                values[name] = _value(name, parameters[name], values, settings, fields)
                wrong.pop(name, None)
            except RequestError as error:
                wrong[name] = str(error)
        left = list(wrong)
    if "mode" in values:
        values.setdefault("draft_length", suits(values["mode"], settings))
    return values, list(wrong.values())


def _value(name: str, sent: str, values: Mapping[str, Any], settings: Settings, fields: Fields) -> Any:
    """The value of one parameter as its field takes it, beside those before it. Raises RequestError with the reason."""
    if name not in fields or name in NEVER:
        raise RequestError(text("link_unknown").format(name=events.shorten(name, NAME)))
    asked = {"prompt": "-", **settings.defaults.model_dump(), **values, name: sent}
    value = getattr(checked(settings.limits, settings.pairs, **asked), name)
    field = fields[name]
    if isinstance(field, gr.Textbox):
        return sent
    if isinstance(field, gr.Slider) and not field.minimum <= value <= field.maximum:
        words = text("link_outside")
        raise RequestError(words.format(name=name, value=value, least=field.minimum, most=field.maximum))
    if isinstance(field, gr.Dropdown | gr.Radio) and value not in [choice for _, choice in field.choices]:
        raise RequestError(text("link_choice").format(name=name))
    return value


def opened(request: gr.Request, settings: Settings, fields: Fields) -> list[Any]:
    """What opening the page at an address changes: the tab, the race to replay, the Race tab's stage and fields."""
    parameters = dict(request.query_params)
    values, wrong = presets(parameters, settings, fields)
    replay = parameters.get("replay")
    told: Any = gr.skip()
    if wrong:
        idle = {"e": "idle", **events.opening(values.get("mode", settings.defaults.mode))}
        words = f"{text('link_ignored')} {'; '.join(wrong[:MESSAGES])}"
        told = line(idle) + line(events.error(words + ("; …" if len(wrong) > MESSAGES else "")))
    return [
        gr.skip() if replay is None else gr.Tabs(selected="replay"),
        gr.skip() if replay is None else replay,
        told,
        *(values.get(name, gr.skip()) for name in fields),
    ]
