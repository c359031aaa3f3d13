"""The figures of a race as short texts: the rows of the scoreboard, and the verdict in one sentence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specdemo.measure.metrics import Lossless, Tally, speed_up

NONE = "–"
MB = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. plain, speculative: a text for each path; joint: one text for both."""

    key: str
    label: str
    plain: str = ""
    speculative: str = ""
    joint: str = ""


def rows(plain: Tally, speculative: Tally, models: Mapping[str, Any] | None = None) -> list[Row]:
    """The scoreboard of two paths, most important figure first. models: of the trace; weight bytes of both."""
    ratio = speed_up(plain, speculative)
    target, draft = ((models or {}).get(f"{name}_weight_bytes") for name in ("target", "draft"))

    def held(tally: Tally, *weights: int | None) -> str:
        return NONE if None in weights else f"{(sum(weights) + tally.cache_bytes) / MB:,.0f}"  # type: ignore[arg-type]

    def both(key: str, label: str, text: Callable[[Tally], str]) -> Row:
        return Row(key, label, text(plain), text(speculative))

    return [
        Row("speed_up", "Speed-up", joint=_number(ratio, 2, "×")),
        both("decode_tokens_per_s", "Decode tokens/s", lambda t: _number(t.decode_tokens_per_s, 1)),
        both("ttft_s", "TTFT", lambda t: _number(t.ttft_s, 2, " s")),
        both("latency_s", "Latency", lambda t: _number(t.latency_s, 2, " s")),
        both("tokens", "Tokens", lambda t: str(t.tokens)),
        both("score", "Score", lambda t: _number(t.score, 3)),
        Row("acceptance_rate", "Acceptance rate", NONE, _percent(speculative.acceptance_rate)),
        both("tokens_per_step", "Tokens per step", lambda t: _number(t.tokens_per_step, 2)),
        Row("time_split", "Draft / verify / other", NONE, _split(speculative)),
        Row("memory", "Weights and cache, MB", held(plain, target), held(speculative, target, draft)),
    ]


def sentence(verdict: Lossless, dtype: str, quantization: str = "none") -> str:
    """The losslessness verdict for a person. dtype: what is computed in; quantization: of the target's weights."""
    match verdict.verdict:
        case "identical":
            return "Identical: both paths committed the same token ids."
        case "same distribution":
            return "Same distribution: both paths sample from the target's own; their texts may differ."
        case "lossy":
            return "Lossy: this is the draft's own text. The target only scored it; it did not verify a single token."
        case "incomplete":
            return "No difference as far as both paths got; there is no whole pair of answers to compare."
    if quantization.startswith("int8"):
        dtype = "int8"
    near = verdict.margin is not None and verdict.margin <= NEAR_TIE.get(dtype, 0.0)
    reason = (
        f"a near-tie within the rounding of {dtype}: kernels for one and for several tokens round differently"
        if near
        else f"more than the rounding of {dtype} explains; this would be a fault"
    )
    return (
        f"Diverged at token {(verdict.position or 0) + 1}: the target's two best logits are "
        f"{_number(verdict.margin, 4)} apart there, {reason}."
    )


# Logits further apart than this are not swapped by rounding. bf16 keeps 8 bits: logits of 16 to 32 come in steps of
# 0.125, and the hidden states behind them carry about as much again. int8 rounds what goes into a product to 8 bits, by
# the largest number among the tokens that share a pass.
NEAR_TIE = {"bf16": 0.5, "fp32": 1e-3, "int8": 0.5}


def _split(tally: Tally) -> str:
    return " / ".join(_percent(share) for share in tally.time_split.values()) or NONE


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return NONE if value is None else f"{value:.{digits}f}{unit}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"
