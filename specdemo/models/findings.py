"""What a preflight found, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from specdemo.config import Dtype


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, in one sentence. topic: a word to find it by."""

    level: Level
    topic: str
    sentence: str


@dataclass(slots=True)
class Report:
    """What was found. shared: ids that both can predict, counted from 0; the target's where there is no draft.

    needed, free: bytes; needed is weights and caches together, by name; free is None where it was not looked up.
    context: tokens that the caches are reckoned for.
    """

    pair: str
    target: str
    draft: str | None
    dtype: Dtype
    quantization: str
    context: int = 0
    shared: int = 0
    needed: dict[str, int] = field(default_factory=dict)
    free: int | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def refusal(self) -> str | None:
        """The first reason why the pair cannot work; None if it can."""
        return next((x.sentence for x in self.findings if x.level is Level.REFUSAL), None)

    def needed_by(self, model: str) -> int:
        """Bytes of the weights and caches of "target" or "draft"."""
        return sum(count for name, count in self.needed.items() if name.startswith(model))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"usable": self.refusal is None}

    def add(self, level: Level, topic: str, sentence: str) -> None:
        self.findings.append(Finding(level, topic, sentence))
