"""The pairs on offer, one row each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """target, draft: model ids or directories; "embedded" is the target that is fetched from its package.

    draft None: the pair speculates without a draft model.
    """

    name: str
    title: str
    target: str
    draft: str | None = None


PAIRS = {
    pair.name: pair
    for pair in [
        Pair("embedded", "SmolLM2-135M-Instruct (embedded)", "embedded"),
    ]
}
