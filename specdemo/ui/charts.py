"""The four live charts: which rows they get, and how they look.

A chart that already shows every series and only gains rows is updated in place; anything else makes it flicker. So
each first frame holds all series, rows are appended and never taken away, and their number is bounded beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import pandas as pd

from specdemo.engine.types import Step
from specdemo.measure.metrics import Tally
from specdemo.measure.scoreboard import MB
from specdemo.measure.trace import Trace
from specdemo.ui.texts import text

POINTS = 160  # of a path, in one series
COLORS = {"plain": "#64748b", "speculative": "#0d9488"}
MEMORY_COLORS = {
    "series_target": "#4f46e5",
    "series_draft": "#16a34a",
    "series_plain_cache": "#64748b",
    "series_speculative_cache": "#0d9488",
    "series_process": "#b45309",
    "series_device": "#be123c",
}


Row = dict[str, Any]  # x, y, series


@dataclass(frozen=True, slots=True)
class Chart:
    key: str
    x: str
    colors: dict[str, str]


_BY_PATH = {text(name): color for name, color in COLORS.items()}
CHARTS = [
    Chart("chart_tokens", "own_clock", _BY_PATH),
    Chart("chart_rate", "own_clock", _BY_PATH),
    Chart("chart_latency", "own_clock", _BY_PATH),
    Chart("chart_memory", "device_time", {text(key): color for key, color in MEMORY_COLORS.items()}),
]


def plots(owner: str = "") -> list[gr.LinePlot]:
    """The chart components, empty, in two rows. owner: a prefix of their ids on the page."""
    made = []
    for pair in (CHARTS[:2], CHARTS[2:]):
        with gr.Row():
            for chart in pair:
                made.append(
                    gr.LinePlot(
                        _frame(_idle(chart)),
                        x="x",
                        y="y",
                        color="series",
                        title=text(chart.key),
                        x_title=text(chart.x),
                        y_title=" ",
                        color_title=" ",
                        color_map=chart.colors,
                        y_lim=[0, None],
                        height=240,
                        elem_id=owner + chart.key,
                        buttons=[],
                    )
                )
    return made


def blank() -> list[pd.DataFrame]:
    """The charts before anything ran."""
    return [_frame(_idle(chart)) for chart in CHARTS]


class Curves:
    """The rows of the charts of one race, appended as steps arrive.

    trace: of the race; how many tokens a path may commit sets how many steps share a point.
    """

    def __init__(self, trace: Trace) -> None:
        models = trace.models
        self._weights = {"series_target": models["target_weight_bytes"], "series_draft": models["draft_weight_bytes"]}
        self._every = -(-trace.settings["max_new_tokens"] // POINTS)
        self._rows: dict[str, list[Row]] = {chart.key: [] for chart in CHARTS}
        self._seen = {"plain": 0, "speculative": 0}
        self._caches = {"plain": 0, "speculative": 0}
        self._device_s = 0.0
        for name in self._seen:
            self._add("chart_tokens", 0.0, 0, text(name))

    def add(self, name: str, step: Step, tally: Tally) -> None:
        """Take one step of path `name`; `tally` is the path's after it."""
        self._device_s += step.seconds
        self._caches[name] = step.cache_bytes
        if not step.tokens:
            return
        self._seen[name] += 1
        if self._seen[name] % self._every and step.finish is None:
            return
        series, at = text(name), tally.latency_s
        self._add("chart_tokens", at, tally.tokens, series)
        if tally.decode_tokens_per_s is not None:
            self._add("chart_rate", at, tally.decode_tokens_per_s, series)
            self._add("chart_latency", at, 1000 * step.seconds / len(step.tokens), series)
        self._add_memory(step)

    def frames(self) -> list[pd.DataFrame]:
        """One table for each chart, idle until every series has a row."""
        frames = []
        for chart in CHARTS:
            rows = self._rows[chart.key]
            complete = {row["series"] for row in rows} == chart.colors.keys()
            frames.append(_frame(rows if complete else _idle(chart)))
        return frames

    def _add_memory(self, step: Step) -> None:
        amounts = self._weights | {
            "series_plain_cache": self._caches["plain"],
            "series_speculative_cache": self._caches["speculative"],
            "series_process": step.process_bytes,
            "series_device": step.device_bytes,
        }
        for key, amount in amounts.items():
            self._add("chart_memory", self._device_s, amount / MB, text(key))

    def _add(self, chart: str, x: float, y: float, series: str) -> None:
        self._rows[chart].append({"x": round(x, 3), "y": round(y, 3), "series": series})


def _idle(chart: Chart) -> list[Row]:
    """What an empty chart shows: one point at the origin for each series, because vega warns about nothing at all."""
    return [{"x": 0.0, "y": 0.0, "series": series} for series in chart.colors]


def _frame(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["x", "y", "series"])
