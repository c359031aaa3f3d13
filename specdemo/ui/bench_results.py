"""What a benchmark found, as tables, plots and files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gradio as gr
import pandas as pd

from specdemo.measure import report
from specdemo.measure.advisor import advice
from specdemo.measure.results import NO_SPLIT, PLAIN, Book, Row, results
from specdemo.ui.texts import text

FILES = {"csv": "benchmark.csv", "json": "benchmark.json", "markdown": "benchmark.md"}


@contextmanager
def written(book: Book, machine: dict[str, Any], prompts: str) -> Iterator[list[Path]]:
    """The results as files in the order of FILES, gone afterwards: Gradio copies them meanwhile.

    prompts: what the command that measures them again takes for its prompts.
    """
    rows, command = book.rows, book.plan.command(prompts)
    overall = report.averages(rows)
    whole = {"rows": results(rows), "averages": overall, "advice": advice(overall), "machine": machine,
             "command": command}  # fmt: skip
    folder = Path(mkdtemp())
    try:
        (folder / FILES["csv"]).write_text(report.csv(rows))
        (folder / FILES["json"]).write_text(json.dumps(whole))
        (folder / FILES["markdown"]).write_text(report.markdown(rows, machine, command))
        yield [folder / name for name in FILES.values()]
    finally:
        shutil.rmtree(folder)


def components() -> list[Any]:
    """Tables and plots, out of sight while they are empty, in the order of blank() and shown()."""
    article = [[name, *("–" if v is None else f"{v:,}" for v in values)] for name, values in report.ARTICLE.items()]
    with gr.Column(visible=False) as found:
        verdict = gr.Markdown(elem_id="bench-advice")  # of our own words only; a text field would cut it on a phone
        averages = gr.Dataframe(headers=list(report.AVERAGES), label=text("bench_averages"), interactive=False,
                                datatype="str", elem_id="bench-averages")  # fmt: skip
        with gr.Accordion(text("bench_columns"), open=False):
            gr.Markdown(report.definitions())
        with gr.Accordion(text("bench_article"), open=False):
            gr.Dataframe(article, headers=[text(f"bench_article_{key}") for key in ("figure", "plain", "scored")],
                         interactive=False, datatype="str", show_label=False)  # fmt: skip
        with gr.Row():
            plots = [
                plot(_frame([]), x="x", y="y", color="series", title=text(f"bench_plot_{key}"), x_title=" ",
                     y_title=" ", color_title=" ", y_lim=[0, None], height=300, buttons=[], x_label_angle=-30,
                     elem_id=f"bench-plot-{key}")
                for key, plot in PLOTS.items()
            ]  # fmt: skip
        with gr.Accordion(text("bench_rows"), open=False):
            rows = gr.Dataframe(headers=list(report.ROW), interactive=False, datatype="str", elem_id="bench-rows")
    return [found, verdict, averages, *plots, rows]


COLORS = ["#0d9488", "#b45309", "#4f46e5", "#be123c", "#64748b", "#16a34a", "#a21caf", "#0369a1"]
# Bars of one place are stacked: right for shares of a whole, wrong for ratios, which are points.
PLOTS = {"speed_up": gr.ScatterPlot, "tokens_per_step": gr.ScatterPlot, "time": gr.BarPlot}


def blank() -> list[Any]:
    """What is shown before anything was measured."""
    return [gr.Column(visible=False), "", [], *(_frame([]) for _ in PLOTS), []]


def shown(rows: Sequence[Row]) -> list[Any]:
    """Averages, plots and every row, of what was measured so far."""
    overall, kinds = report.averages(rows), report.averages(rows, by_kind=True)
    drawn = [entry for entry in kinds if entry["mode"] != PLAIN]
    time = []
    for entry in overall:
        if entry["draft_share"] is not None:
            time += [(report.label(entry), entry[f"{part}_share"], text(f"bench_part_{part}")) for part in NO_SPLIT]
    points = {
        "speed_up": [(e["kind"], e["speed_up"], report.label(e)) for e in drawn],
        "tokens_per_step": [(e["kind"], e["tokens_per_step"], report.label(e)) for e in drawn if e["tokens_per_step"]],
        "time": time,
    }
    return [
        gr.Column(visible=True),
        "\n\n".join((f"**{text('bench_advice')}**", *advice(overall))),
        [report.average_line(entry) for entry in overall],
        *(_redrawn(key, points[key], len(rows)) for key in PLOTS),
        [report.cells(row) for row in rows],
    ]


def progress(done: int, total: int, seconds: float) -> str:
    """How far a benchmark is after `seconds`, in answers, and how long it may still take."""
    if not done:
        return text("bench_running").format(done=done, total=total)
    left = seconds / done * (total - done)
    words = f"{left / 60:.0f} min" if left > 90 else f"{left:.0f} s"
    return text("bench_left").format(done=done, total=total, left=words)


def _redrawn(key: str, points: list[tuple[str, float, str]], answers: int) -> Any:
    """A plot anew. One that only gets values keeps the series of its first frame; a new title embeds it again."""
    series = list(dict.fromkeys(name for _, _, name in points))
    return PLOTS[key](
        _frame(points),
        title=f"{text(f'bench_plot_{key}')} ({text('bench_after').format(answers=answers)})",
        color_map=dict(zip(series, COLORS * len(series), strict=False)),
        y_lim=[0, 1.1 * max((y for _, y, _ in points), default=1.0) if key != "time" else 1.0],
    )


def _frame(points: list[tuple[str, float, str]]) -> pd.DataFrame:
    """Typed even when empty: a plot takes the scale of its axes from the types of its first frame."""
    frame = pd.DataFrame(points, columns=["x", "y", "series"])
    return frame.astype({"x": str, "y": float, "series": str})
