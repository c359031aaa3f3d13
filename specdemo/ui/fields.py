"""The settings of a race as components, by the names that a request has for them."""

from __future__ import annotations

from typing import get_args

import gradio as gr

from specdemo.config import LENGTHS, NEEDS, Dtype, Precision, Quantized, Settings
from specdemo.models.pairs import PAIRS
from specdemo.ui.texts import text

Fields = dict[str, gr.components.Component]


def modes(settings: Settings, own_draft: bool) -> list[tuple[str, str]]:
    """The modes that some served pair can run, as (words, name). own_draft: the server, or visitors, name a draft."""
    has = {field for name in settings.pairs for field in ("draft", "head") if getattr(PAIRS[name], field)}
    if own_draft or settings.own_models:
        has.add("draft")
    return [(text(f"mode_{mode}"), mode) for mode, needs in NEEDS.items() if not needs or has.intersection(needs)]


def suits(mode: str, settings: Settings) -> int:
    """The draft length that is set where a mode is chosen."""
    return min(LENGTHS[mode], settings.limits.max_draft_length)


def fields(settings: Settings, own_draft: bool) -> Fields:
    """Lay out every field of a request but the prompt; call it inside gr.Blocks."""
    with gr.Accordion(text("settings"), open=False):
        with gr.Row():
            models = _models(settings, own_draft)
        if settings.own_models:
            with gr.Row():
                models |= _own_models()
        with gr.Row():
            weights = _weights(settings)
        with gr.Row():
            lengths = _lengths(settings)
        with gr.Row():
            sampling = _sampling()
        with gr.Row():
            rest = _rest()
    # Only a visitor's own choice sets the length; what a link presets comes with its own.
    models["mode"].input(  # type: ignore[attr-defined]
        lambda mode: suits(mode, settings), models["mode"], lengths["draft_length"], queue=False,
        show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    return models | weights | lengths | sampling | rest


def _models(settings: Settings, own_draft: bool) -> Fields:
    defaults = settings.defaults
    pairs = [(PAIRS[name].title, name) for name in settings.pairs]
    return {
        "pair": gr.Dropdown(pairs, value=defaults.pair, label=text("pair")),
        "mode": gr.Dropdown(modes(settings, own_draft), value=defaults.mode, label=text("mode")),
    }


def _own_models() -> Fields:
    return {
        name: gr.Textbox("", label=text(f"own_{name}"), info=text(f"own_{name}_info"), elem_id=f"own-{name}")
        for name in ("target", "draft")
    }


def _weights(settings: Settings) -> Fields:
    defaults = settings.defaults
    return {
        "dtype": gr.Radio(list(get_args(Dtype)), value=defaults.dtype, label=text("dtype"), info=text("dtype_info")),
        "quantization": gr.Radio(
            list(get_args(Precision)),
            value=defaults.quantization,
            label=text("quantization"),
            info=text("quantization_info"),
        ),
        "quantize": gr.Radio(
            [(text(f"quantize_{what}"), what) for what in get_args(Quantized)],
            value="target",
            label=text("quantize"),
            info=text("quantize_info"),
        ),
        "double_quantization": gr.Checkbox(
            False, label=text("double_quantization"), info=text("double_quantization_info")
        ),
    }


def _lengths(settings: Settings) -> Fields:
    defaults, limits = settings.defaults, settings.limits
    return {
        "max_new_tokens": gr.Slider(
            min(16, limits.max_new_tokens // 2),
            limits.max_new_tokens,
            defaults.max_new_tokens,
            step=1,
            label=text("max_new_tokens"),
        ),
        "draft_length": gr.Slider(
            1,
            limits.max_draft_length,
            suits(defaults.mode, settings),
            step=1,
            label=text("draft_length"),
            info=text("draft_length_info"),
        ),
        "seed": gr.Number(42, precision=0, minimum=0, label=text("seed")),
    }


def _sampling() -> Fields:
    return {
        "temperature": gr.Slider(0, 2, 0, step=0.05, label=text("temperature"), info=text("temperature_info")),
        "top_p": gr.Slider(0.05, 1, 1, step=0.05, label=text("top_p"), info=text("top_p_info")),
        "top_k": gr.Slider(0, 200, 0, step=1, label=text("top_k"), info=text("top_k_info")),
        "repetition_penalty": gr.Slider(
            0.5, 2, 1, step=0.05, label=text("repetition_penalty"), info=text("repetition_penalty_info")
        ),
    }


def _rest() -> Fields:
    return {
        "stop": gr.Textbox("", lines=2, label=text("stop_strings"), info=text("stop_strings_info")),
        "chat_template": gr.Checkbox(True, label=text("chat_template"), info=text("chat_template_info")),
        "exact": gr.Checkbox(False, label=text("exact"), info=text("exact_info")),
    }
