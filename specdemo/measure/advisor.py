"""Whether speculation pays: the verdict over what a benchmark measured, a sentence for each precision, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdemo.config import SCORE
from specdemo.measure.results import PLAIN, is_peer

Average = Mapping[str, Any]  # an entry of report.averages()


def advice(averages: Sequence[Average]) -> list[str]:
    """One sentence a precision: the best lossless mode and setting, or "do not speculate"; nothing where none ran.

    Sure is only what the 95% interval of the speed-up says: where it holds 1, the prompts are too few or too different.
    """
    precisions: dict[tuple[str, str], list[Average]] = {}
    for entry in averages:
        drafts = entry["mode"] not in (PLAIN, SCORE) and not is_peer(entry["mode"])
        if drafts and entry["speed_up"] is not None:
            precisions.setdefault((entry["dtype"], entry["quantization"]), []).append(entry)
    return [_sentence(max(entries, key=lambda entry: entry["speed_up"])) for entries in precisions.values()]


def _sentence(best: Average) -> str:
    ratio, interval = best["speed_up"], best["speed_up_interval"]
    precision = best["dtype"] + ("" if best["quantization"] == "none" else f", {best['quantization']}")
    setting = best["mode"] + (f", draft length {best['draft_length']}" if best["draft_length"] else "")
    prompts = f"{best['prompts']} prompt{'s' if best['prompts'] > 1 else ''}"
    span = f", 95% interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
    measured = f"{ratio:.2f} times as fast as plain decoding ({prompts}{span})"
    why = (
        f"A step costs {best['step_cost']:.2f} plain ones and commits {best['step_cost'] * ratio:.2f} tokens: "
        f"it pays from {best['step_cost']:.2f} on."
    )
    if interval and interval[0] > 1:
        return f"{precision}: speculate, with {setting}. It was {measured}. {why}"
    if interval and interval[1] < 1:
        return f"{precision}: do not speculate. The best way, {setting}, was {measured}. {why}"
    return f"{precision}: no verdict yet, measure more prompts. The best way so far, {setting}, was {measured}. {why}"
