"""A benchmark's rows summed up: averages with intervals, the article's table, Markdown and CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import geometric_mean, mean, median
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from specdemo.config import SCORE
from specdemo.measure.advisor import advice
from specdemo.measure.metrics import DEFINITIONS
from specdemo.measure.results import PLAIN, Row, is_peer, results

SETTING = ("mode", "quantization", "dtype", "draft_length")  # what is compared
LEVEL = 0.95  # of the interval of a speed-up
MEANS = ("latency_s", "ttft_s", "decode_tokens_per_s", "score", "tokens_per_step", "acceptance_rate", "draft_share",
         "verify_share", "other_share", "target_weights_mb", "draft_weights_mb", "cache_mb")  # fmt: skip
# Averages of the article (Gemma-2 9B and 2B on an A100): plain, draft then score; the last two lines with NF4.
ARTICLE = {
    "latency_s": (25.09, 15.78),
    "decode_tokens_per_s": (7.97, 12.68),
    "score": (None, -0.5242),
    "quantized latency_s": (27.65, 15.56),
    "memory_mb, before and after quantization": (26_458, 8_993),
}


def averages(rows: Sequence[Row], by_kind: bool = False) -> list[dict[str, Any]]:
    """One entry a setting (and kind of prompt), in the order in which they came.

    Repeats of a prompt count as their median. speed_up: geometric mean over prompts, then its 95% interval;
    speed_up_surely: what it exceeds with 95% confidence even if the setting was chosen as the best of its precision's.
    step_cost: time of a step over that of a plain one, geometric mean: tokens per step from which speculation pays.
    kept: share of an answer's steps that kept more than 0, 1, ... drafted tokens, mean over answers. identical:
    prompts whose answer is the plain one, None where answers are sampled. margins: of the answers that are another, the
    target's top-2 logit gap where they part, largest first.
    """
    found: dict[tuple[Any, ...], dict[Any, list[Row]]] = {}
    for row in rows:
        key = tuple(row[name] for name in SETTING) + ((row["kind"],) if by_kind else ())
        found.setdefault(key, {}).setdefault(row["prompt"], []).append(row)
    rivals = Counter(key[1:3] + key[4:] for key in found if key[0] not in (PLAIN, SCORE) and not is_peer(key[0]))
    return [_average(key, prompts, rivals[key[1:3] + key[4:]]) for key, prompts in found.items()]


def _average(key: tuple[Any, ...], prompts: dict[Any, list[Row]], rivals: int) -> dict[str, Any]:
    entry: dict[str, Any] = dict(zip((*SETTING, "kind"), key, strict=False)) | {"prompts": len(prompts)}
    for name in MEANS:
        values = [median(known) for own in prompts.values() if (known := [r[name] for r in own if r[name] is not None])]
        entry[name] = mean(values) if values else None
    ratios = [median(r["speed_up"] for r in own if r["speed_up"]) for own in prompts.values() if _raced(own)]
    entry["speed_up"] = geometric_mean(ratios) if ratios else None
    entry["speed_up_interval"] = _interval(ratios, LEVEL)
    # The best of several is likelier to look good by chance: each of n gets an n-th of what may go wrong.
    surely = _interval(ratios, max(LEVEL, 1 - 2 * (1 - LEVEL) / max(rivals, 1)))
    entry["speed_up_surely"] = None if surely is None else surely[0]
    costs = [median(known) for own in prompts.values() if (known := [c for r in own if (c := _step_cost(r))])]
    entry["step_cost"] = geometric_mean(costs) if costs else None
    entry["lowest"] = min(ratios, default=None)
    sampled = any(r["lossless"] == "same distribution" for own in prompts.values() for r in own)
    same = sum(all(r["lossless"] == "identical" for r in own) for own in prompts.values())
    entry["identical"] = None if sampled else same
    apart = (r["margin"] for own in prompts.values() for r in own if r["margin"] is not None)
    entry["margins"] = sorted(apart, reverse=True)
    entry["median"] = median(ratios) if ratios else None
    shares = [[count / r["steps"] for count in r["kept"]] for own in prompts.values() for r in own if r["steps"]]
    depth = max(map(len, shares), default=0)
    entry["kept"] = [mean(own[d] if d < len(own) else 0.0 for own in shares) for d in range(depth)]
    return entry


def beside_fixed(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """A line for each precision, by kind of prompt: auto's speed over that of the fixed setting that is fastest there.

    Latencies of one heat are compared; repeats count as their median, prompts by geometric mean. The fastest one is
    chosen for each kind when all is known, which is in its favour. Of several lengths of auto the slowest counts. Empty
    without auto, or with nothing beside it.
    """
    own = [row for row in rows if row["mode"] not in (PLAIN, SCORE) and not is_peer(row["mode"])]
    if not {"auto"} < {row["mode"] for row in own}:
        return {}
    frame = pd.DataFrame(own)
    frame["setting"] = [row["mode"] if row["mode"] == "auto" else f"{row['mode']} {row['draft_length']}" for row in own]
    kind = ["dtype", "quantization", "kind"]
    seconds = frame.pivot_table("latency_s", [*kind, "prompt", "repeat"], "setting", aggfunc="max")
    ratios = seconds.drop(columns="auto").div(seconds["auto"], axis=0).groupby([*kind, "prompt"]).median()
    lines: dict[str, dict[str, float]] = {}
    best: dict[Any, float] = ratios.apply(np.log).groupby(kind).mean().apply(np.exp).min(axis=1).dropna().to_dict()
    for (dtype, quantization, name), ratio in best.items():
        setting = {"mode": BESIDE, "draft_length": None, "dtype": dtype, "quantization": quantization}
        lines.setdefault(label(setting), {})[name] = ratio
    return lines


def _step_cost(row: Row) -> float | None:
    """Time of a step in those of plain decoding: what tokens per step and speed-up leave no choice about."""
    return row["tokens_per_step"] / row["speed_up"] if row["tokens_per_step"] and row["speed_up"] else None


def _raced(rows: Sequence[Row]) -> bool:
    return any(row["speed_up"] for row in rows)


def _interval(ratios: Sequence[float], level: float) -> tuple[float, float] | None:
    """Of the geometric mean over all prompts of their kind, by Student's t on the logarithms.

    Resampling, which needs no normal distribution, covers 84% instead of 95% with five prompts.
    """
    if len(ratios) < 2:
        return None
    logs = np.log(ratios)
    half = stats.t.ppf((1 + level) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def csv(rows: Sequence[Row]) -> str:
    """One line a row."""
    frame = pd.DataFrame(results(rows)).drop(columns=["kept"], errors="ignore")
    text: str = frame.to_csv(index=False)
    return text


def markdown(rows: Sequence[Row], machine: dict[str, Any], command: str) -> str:
    """The report: averages, the article's own figures beside them, by kind, by prompt, and what all of it means."""
    overall, kinds = averages(rows), averages(rows, by_kind=True)
    named = list(dict.fromkeys(entry["kind"] for entry in kinds))
    settings = [entry for entry in overall if entry["mode"] != PLAIN]
    by_kind = [
        [label(entry), *(_number(_of(kinds, entry, kind), 2) for kind in named)] for entry in settings
    ]  # speed-up
    by_kind += [[name, *(_number(found.get(kind), 2) for kind in named)] for name, found in beside_fixed(rows).items()]
    parts = [
        "# Benchmark",
        f"`{command}`",
        ", ".join(f"{name}: {value}" for name, value in machine.items() if value is not None),
        "## Does it pay?",
        "\n".join(f"- {line}" for line in advice(overall)) or NONE,
        "## Averages",
        table(AVERAGES, [average_line(entry) for entry in overall]),
        "The article's averages on its own machine and pair (plain; draft, then score):",
        table(
            ("figure", "plain", "draft, then score"),
            [[name, *(NONE if v is None else f"{v:,}" for v in values)] for name, values in ARTICLE.items()],
        ),
        "## Speed-up by kind of prompt",
        table(("mode", *named), by_kind),
        "## Every answer",
        table(ROW, [cells(row) for row in rows]),
        "## Definitions",
        definitions(),
    ]
    return "\n\n".join(parts) + "\n"


NONE = "–"
BESIDE = "auto over the best fixed setting"
AVERAGES = ("mode", "latency s", "TTFT s", "tokens/s", "score", "tokens/step", "step cost",
            "acceptance", "kept at 1, 2, 3", "drafting", "speed-up", "median", "lowest", "identical", "parted at",
            "target MB", "draft MB", "caches MB")  # fmt: skip
# What the columns say that are no figure of a single path; those are defined in metrics.py.
COLUMNS = {
    "order": "Our answers to a prompt advance in turn, a step at a time, so that a slow moment of the machine hits all "
    "of them; transformers' ways run to their end, one by one.",
    "all but speed-up": "Means over prompts of each answer's figure: a row's columns do not divide into each other.",
    "step cost": "Time of a step over that of a plain one: the tokens per step from which speculation pays.",
    "kept at 1, 2, 3": "Share of an answer's steps that kept a first, second, third drafted token.",
    "drafting": "Share of the answer's own clock that drafting took.",
    "speed-up": "Geometric mean over prompts of plain latency over this latency; in brackets its 95% "
    "interval, Student's t on the logarithms. One prompt whose answer repeats itself can lift it: compare the median.",
    "lowest": "The lowest speed-up of a prompt.",
    "identical": "Prompts whose answer has exactly the plain one's token ids; a dash where answers are sampled.",
    "parted at": "Where ids differ: the largest of the gaps between the target's two best logits there.",
    "MB": "Weights of the target, of what drafts, and all caches of the path; a dash is not measured.",
}
ROW = ("prompt", "kind", "mode", "quantization", "dtype", "draft_length", "tokens", "latency_s", "ttft_s",
       "decode_tokens_per_s", "score", "tokens_per_step", "acceptance_rate", "speed_up", "lossless")  # fmt: skip


def definitions() -> str:
    """What every column and figure means, as a Markdown list."""
    figures = {name: words for name, words in DEFINITIONS.items() if name not in ("speed_up", "memory", "time_split")}
    return "\n".join(f"- **{name}**: {words}" for name, words in (COLUMNS | figures).items())


def label(entry: Row) -> str:
    """A setting in words."""
    length = f", {entry['draft_length']}" if entry["draft_length"] else ""
    quantized = "" if entry["quantization"] == "none" else f", {entry['quantization']}"
    return f"{entry['mode']}{length} ({entry['dtype']}{quantized})"


def average_line(entry: dict[str, Any]) -> list[str]:
    """The cells of AVERAGES for one entry of averages()."""
    interval = entry["speed_up_interval"]
    ratio = _number(entry["speed_up"], 2) + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
    return [
        label(entry),
        *(_number(entry[name], digits) for name, digits in
          (("latency_s", 2), ("ttft_s", 2), ("decode_tokens_per_s", 1), ("score", 3), ("tokens_per_step", 2),
           ("step_cost", 2), ("acceptance_rate", 2))),
        ", ".join(_number(share, 2) for share in entry["kept"][:3]) or NONE,
        NONE if entry["draft_share"] is None else f"{entry['draft_share']:.0%}",
        ratio,
        _number(entry["median"], 2),
        _number(entry["lowest"], 2),
        NONE if entry["identical"] is None else f"{entry['identical']} of {entry['prompts']}",
        _number(entry["margins"][0] if entry["margins"] else None, 4),
        *(_number(entry[name], 0) for name in ("target_weights_mb", "draft_weights_mb", "cache_mb")),
    ]  # fmt: skip


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table. A cell may hold anything: a bar, a line break or markup in it stays text."""

    def safe(cell: str) -> str:
        return re.sub(r"([\\|`*_<\[])", r"\\\1", " ".join(cell.split()))

    rows = [list(map(safe, head)), ["---"] * len(head), *(map(safe, line) for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def cells(row: Row) -> list[str]:
    """The cells of ROW for one answer."""
    return [_cell(row[name]) for name in ROW]


def _of(kinds: Sequence[dict[str, Any]], entry: dict[str, Any], kind: str) -> float | None:
    return next(
        (e["speed_up"] for e in kinds if e["kind"] == kind and all(e[name] == entry[name] for name in SETTING)), None
    )


def _cell(value: Any) -> str:
    if value is None:
        return NONE
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
