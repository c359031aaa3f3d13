"""The pairs on offer, one row each."""

from dataclasses import dataclass
from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"  # what was made for the embedded target; see docs/draft.md


@dataclass(frozen=True, slots=True)
class Pair:
    """target, draft: model ids or directories; "embedded" is the target that is fetched from its package.

    draft None: the pair speculates without a draft model. ngram: table of an n-gram model over the target's own
    answers; None leaves it to what the text so far repeats. head: a feature head that continues the target's states.
    """

    name: str
    title: str
    target: str
    draft: str | None = None
    ngram: Path | None = None
    head: Path | None = None


PAIRS = {
    pair.name: pair
    for pair in [
        Pair(
            "embedded",
            "SmolLM2-135M-Instruct (embedded)",
            "embedded",
            ngram=WEIGHTS / "embedded-ngram.safetensors",
            head=WEIGHTS / "embedded-head.safetensors",
        ),
    ]
}
