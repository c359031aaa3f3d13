"""Text at the edge: prompts to ids, committed ids to pieces of text. The engine in between knows ids only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\ufffd"


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: bool) -> list[int]:
    """Prompt to ids, once, for both paths. chat: wrap it in the tokenizer's chat template as a user's turn.

    The template writes the special tokens itself, so none are added again after it.
    Raises ValueError for text that is not valid Unicode.
    """
    broken = next((i for i, c in enumerate(prompt) if "\ud800" <= c <= "\udfff"), None)
    if broken is not None:
        raise ValueError(f"the prompt is not valid Unicode: character {broken} is half of a pair; remove it")
    if not chat:
        return tokenizer(prompt).input_ids
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of an answer, special tokens left out."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)  # a list only for a batch
    return text


class Stops:
    """Finds the first token after which an answer holds one of some stop strings; that token is its last.

    So a stop string that begins or ends inside a token is found as well, and ids, labels and text end together.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = strings

    def __call__(self, answer: Sequence[int], new: int) -> int | None:
        """Number of ids at which the answer is over, looking at the `new` last ones; None while it is not."""
        for end in range(len(answer) - new + 1, len(answer) + 1):
            text = decode(self._tokenizer, answer[:end])
            if any(string in text for string in self._strings):
                return end
        return None


class TextStream:
    """Turns committed ids into text, one piece a token; all pieces joined are the decoded answer.

    A character can be split over tokens: its first tokens give "" and the one that completes it gives it whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._settled: list[int] = []  # ids of the last released piece: what a decoder's spacing may depend on
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each of `ids` adds."""
        return [self._push(token) for token in ids]

    def finish(self) -> str:
        """What is left of a character that never became complete."""
        return self._release() if self._held else ""

    def _push(self, token: int) -> str:
        self._held.append(token)
        if self._piece().endswith(_REPLACEMENT):
            return ""
        return self._release()

    def _piece(self) -> str:
        return decode(self._tokenizer, self._settled + self._held)[len(decode(self._tokenizer, self._settled)) :]

    def _release(self) -> str:
        piece = self._piece()
        self._settled, self._held = self._held, []
        return piece
