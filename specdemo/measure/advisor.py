"""Whether speculation pays: the verdict over what a benchmark measured, a sentence for each precision, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdemo.config import SCORE
from specdemo.measure.results import PLAIN, is_peer

Average = Mapping[str, Any]  # an entry of report.averages()


def advice(averages: Sequence[Average]) -> list[str]:
    """One sentence a precision: the best lossless mode and setting, or "do not speculate"; nothing where none ran.

    "Speculate" only where some setting is surely faster, having been chosen among all that were measured; "do not"
    only where the 95% interval of every one ends below 1. Else the prompts are too few or too different.
    """
    precisions: dict[tuple[str, str], list[Average]] = {}
    for entry in averages:
        drafts = entry["mode"] not in (PLAIN, SCORE) and not is_peer(entry["mode"])
        if drafts and entry["speed_up"] is not None:
            precisions.setdefault((entry["dtype"], entry["quantization"]), []).append(entry)
    return [_verdict(entries) for entries in precisions.values()]


def _verdict(entries: Sequence[Average]) -> str:
    sure = [entry for entry in entries if entry["speed_up_surely"] and entry["speed_up_surely"] > 1]
    best = max(sure or entries, key=lambda entry: entry["speed_up"])
    ratio, interval = best["speed_up"], best["speed_up_interval"]
    precision = best["dtype"] + ("" if best["quantization"] == "none" else f", {best['quantization']}")
    setting = best["mode"] + (f", draft length {best['draft_length']}" if best["draft_length"] else "")
    prompts = f"{best['prompts']} prompt{'s' if best['prompts'] > 1 else ''}"
    chosen = f", best of {len(entries)} settings" if len(entries) > 1 else ""
    span = f", 95% interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
    measured = f"{ratio:.2f} times as fast as plain decoding ({prompts}{chosen}{span})"
    why = (
        f"A step costs {best['step_cost']:.2f} plain ones and commits {best['step_cost'] * ratio:.2f} tokens: "
        f"it pays from {best['step_cost']:.2f} on."
    )
    if sure:
        return f"{precision}: speculate, with {setting}. It was {measured}. {why}"
    if all(entry["speed_up_interval"] and entry["speed_up_interval"][1] < 1 for entry in entries):
        return f"{precision}: do not speculate. The best way, {setting}, was {measured}. {why}"
    return f"{precision}: no verdict yet, measure more prompts. The best way so far, {setting}, was {measured}. {why}"
