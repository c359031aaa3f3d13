"""`python -m specdemo preflight`: whether a pair can work here, before anything large is fetched."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from specdemo import options
from specdemo.config import Dtype, Precision
from specdemo.models.pairs import PAIRS, Pair
from specdemo.models.quantize import Quantization
from specdemo.request import RequestError

if TYPE_CHECKING:
    from specdemo.models.findings import Report

STYLES = {"ok": "green", "warning": "yellow", "refusal": "red"}


def preflight(
    pair: Annotated[str | None, typer.Option(help="A listed pair; `embedded` if nothing is given.")] = None,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "none",
    quantize: options.Quantize = "target",
    double_quantization: options.DoubleQuantization = False,
    context: Annotated[
        int | None, typer.Option(help="Tokens that caches are reckoned for.", show_default="2048")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Say whether a pair can work here and what memory it takes; of the hub's models it fetches no weights."""
    try:
        chosen = _pair(pair, target, draft)
        wanted = _quantization(quantization, quantize, double_quantization)
        if dtype not in get_args(Dtype):
            raise RequestError(f"dtype: there is no {dtype!r}; choose {', '.join(get_args(Dtype))}")
        if context is not None and context < 1:
            raise RequestError(f"context: {context} tokens are too few; give 1 or more")
    except ValueError as error:
        raise _refused(error) from error
    from transformers.utils import logging

    from specdemo import device
    from specdemo.models.load import resolve_dtype
    from specdemo.models.preflight import preflight as look

    logging.set_verbosity_error()  # what it would warn of is a finding, or nothing to act on
    report = look(chosen, resolve_dtype(dtype, device.pick()), wanted, context)  # type: ignore[arg-type]
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        _show(report)
    if report.refusal is not None:
        raise _refused(report.refusal)


def _pair(pair: str | None, target: str | None, draft: str | None) -> Pair:
    if target is not None:
        if pair is not None:
            raise RequestError("pair: give either --pair or --target, not both")
        return Pair("custom", "", target, draft)
    name = pair or "embedded"
    if name not in PAIRS:
        raise RequestError(f"pair: there is no {name[:80]!r}; choose one of {', '.join(PAIRS)}")
    return PAIRS[name] if draft is None else replace(PAIRS[name], draft=draft)


def _quantization(kind: str, which: str, double: bool) -> Quantization:
    if kind not in get_args(Precision):
        raise RequestError(f"quantization: there is no {kind!r}; choose {', '.join(get_args(Precision))}")
    if which not in ("target", "both"):
        raise RequestError(f"quantize: there is no {which!r}; choose target or both")
    return Quantization(kind, which == "both", double)  # type: ignore[arg-type]


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", "", box=None, pad_edge=False, show_header=False)
    for finding in report.findings:
        # Text takes ids and tokens as they are: no markup.
        table.add_row(Text(finding.level, STYLES[finding.level]), Text(finding.topic), Text(finding.sentence))
    console = Console()
    console.print(Text(f"{report.target} + {report.draft}" if report.draft else report.target, "bold"))
    console.print(table)


def _refused(reason: object) -> SystemExit:
    print(f"specdemo: {reason}", file=sys.stderr)
    return SystemExit(2)
