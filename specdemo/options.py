"""Options that several commands have, each described once."""

import re
from pathlib import Path
from typing import Annotated

import typer

Pair = Annotated[str, typer.Option(help="Pair of target and draft.")]
Mode = Annotated[
    str,
    typer.Option(
        help="Who drafts: tree, staged (draft sped up by n-gram), ngram, chain, auto (as much as pays), or "
        "draft-then-score (lossy)."
    ),
]
Target = Annotated[str | None, typer.Option(help="Model id or directory instead of a pair.", show_default=False)]
Draft = Annotated[
    str | None, typer.Option(help="Model id or directory of a draft instead of the pair's.", show_default=False)
]
Tokens = Annotated[int, typer.Option(help="Tokens of an answer, at most.")]
Dtype = Annotated[str, typer.Option(help="auto, bf16 or fp32.")]
Quantization = Annotated[str, typer.Option(help="Of the weights: none, nf4 or int8.")]
Quantize = Annotated[str, typer.Option(help="What is quantized: target or both.")]
DoubleQuantization = Annotated[bool, typer.Option("--double-quantization", help="Quantize NF4's scales too.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus; 1 is off.")]
TopK = Annotated[int, typer.Option(help="Most probable tokens kept; 0 is off.")]
Penalty = Annotated[float, typer.Option(help="On tokens that have occurred; 1 is off.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends the answer; may be given several times.", show_default=False),
]
Exact = Annotated[bool, typer.Option("--exact", help="Decide near-ties again, as plain decoding does.")]
Seed = Annotated[int, typer.Option(help="Of the sampling.")]
DraftLength = Annotated[
    int | None,
    typer.Option(help="Tokens (nodes of a tree) drafted a step, at most.", show_default="what suits the mode"),
]
ChatTemplate = Annotated[bool, typer.Option(help="Wrap the prompt as a user's turn.")]
Trace = Annotated[Path | None, typer.Option(help="Write the whole run to this file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line instead of text.")]


def numbers(text: str, name: str) -> list[int]:
    """Whole numbers from 1 on, by comma. Raises typer.BadParameter."""
    if not re.fullmatch("[1-9][0-9]*(,[1-9][0-9]*)*", text):
        raise typer.BadParameter(f"{name} must be whole numbers from 1 on, by comma, not {text!r}")
    return [int(number) for number in text.split(",")]
