"""Whether two models mean the same by an id: tokenizers compared by token strings, as equal sizes prove nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """shared: how many ids both can predict, counted from 0. special: those of them that are added tokens and differ.

    first: the first id that differs and is an ordinary token, with what it is in target and draft; None if none does.
    """

    shared: int
    special: tuple[int, ...]
    first: tuple[int, str | None, str | None] | None

    @property
    def refusal(self) -> str | None:
        """Why the draft cannot propose for the target; None where it can."""
        if self.first is None:
            return None
        id, target, draft = self.first
        return (
            f"the draft's tokenizer is not the target's: id {id} is {draft!r} in the draft and {target!r} in the "
            "target; choose a draft of the same model family"
        )


def compare(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, target_width: int, draft_width: int
) -> Vocabularies:
    """Compare two vocabularies; widths: of the logits, which may be padded beyond the tokenizer.

    An id that only one of the two knows, or that is an added token in both (reserved, padding, marks of a chat
    template), may differ: whatever a draft proposes there, the target decides, so it costs acceptance alone.
    """
    ours, theirs = ({id: token for token, id in x.get_vocab().items()} for x in (target, draft))
    added = target.added_tokens_decoder.keys() & draft.added_tokens_decoder.keys()
    shared = min(max(ours) + 1, max(theirs) + 1, target_width, draft_width)
    differing = [id for id in range(shared) if ours.get(id) != theirs.get(id)]
    tolerated = [id for id in differing if id in added or ours.get(id) is None or theirs.get(id) is None]
    first = next(((id, ours[id], theirs[id]) for id in differing if id not in tolerated), None)
    return Vocabularies(shared, tuple(tolerated), first)
