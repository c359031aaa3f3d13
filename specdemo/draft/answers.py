"""The target's own answers as files: what a draft is made from.

A row is a sequence that the target wrote: a user's message, the turn to the answer, the answer. Beside a file of rows
(.jsonl) there may be one of hidden states (.states): one state after the other, float16, for each id of a row but the
last.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from specdemo.engine.cache import CachedModel
from specdemo.text import encode

RAW = "continue"  # the kind without a chat template


@dataclass(slots=True)
class Row:
    """One finished sequence: ids after the fixed opening; the first `message` of them are not the answer.

    states [len(ids) - 1, D]: the target's last hidden state (after its final norm) at each id but the last, float16;
    None where they were not kept.
    """

    kind: str
    message: int
    ids: list[int]
    greedy: bool
    states: torch.Tensor | None = None

    def json(self) -> str:
        return json.dumps({"k": self.kind, "u": self.message, "s": self.ids, "g": self.greedy}, separators=(",", ":"))


def read(path: Path) -> Iterator[Row]:
    """The rows of a file of answers, plain or .gz; a half-written last line is left out.

    Raises ValueError with file and line for anything that is not a row.
    """
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                row = json.loads(line)
                found = Row(row.get("k", "any"), int(row["u"]), [int(id) for id in row["s"]], bool(row["g"]))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number} is not a row of answers: {error!r}") from error
            yield found


def opening_of(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the chat template puts before a user's message and behind it, as ids."""
    whole = encode(tokenizer, "\0", chat=True)
    message = encode(tokenizer, "\0", chat=False)
    cut = next(i for i in range(len(whole)) if whole[i : i + len(message)] == message)
    return whole[:cut], whole[cut + len(message) :]


def write(
    path: Path,
    rows: Iterable[Row],
    width: int,
    turn: int,
    tokens: int,
    excluded: Set[tuple[int, ...]] = frozenset(),
    keep_states: bool = False,
) -> Iterator[int]:
    """Append rows to `path` until its answers have `tokens` tokens together; yields the count as it grows.

    width: of a state, numbers. turn: ids between a message and its answer.
    excluded: messages (ids) whose rows are thrown away, so that what evaluates a draft never trains it.
    keep_states: write the hidden states beside it (suffix .states, float16, one row after the other), which spares the
    training a pass of the target over everything.
    """
    states_path = path.with_suffix(".states")
    done = states_due = 0
    if path.exists():
        whole = path.read_bytes()
        os.truncate(path, whole.rfind(b"\n") + 1)  # a killed run may have left half a line
        for row in read(path):
            done += len(row.ids) - row.message
            states_due += len(row.ids) - 1
    if keep_states:
        states_path.touch()
        size = states_due * width * 2
        if states_path.stat().st_size < size:
            raise ValueError(f"{states_path} has fewer states than {path} has tokens; begin both anew")
        os.truncate(states_path, size)
    yield done
    with path.open("a") as file, (states_path if keep_states else Path(os.devnull)).open("ab") as states:
        for row in rows:
            if done >= tokens:
                return
            if row.kind == RAW:  # no message: what is excluded may reach into the text that was written
                if any(tuple(row.ids[: len(ids)]) == ids for ids in excluded):
                    continue
            elif tuple(row.ids[: row.message - turn]) in excluded:
                continue
            assert row.states is not None
            states.write(row.states.cpu().numpy().tobytes())
            states.flush()  # first: a row without its states would be of no use, the reverse is cut off at the start
            file.write(row.json() + "\n")
            file.flush()
            done += len(row.ids) - row.message
            yield done


@torch.inference_mode()
def write_states(path: Path, model: PreTrainedModel, opening: Sequence[int]) -> Iterator[int]:
    """Add the hidden states to a file of answers that was written without; yields how many rows have theirs.

    A file of states that was begun is continued.
    """
    width = model.config.get_text_config().hidden_size * 2  # bytes of a float16 row
    target = path.with_suffix(".states")
    target.touch()
    size, whole = target.stat().st_size, 0
    with target.open("r+b") as file:
        for done, row in enumerate(read(path), 1):
            end = whole + (len(row.ids) - 1) * width
            if end > size:
                before = [] if row.kind == RAW else list(opening)
                cached = CachedModel(model, keep_states=True)
                cached.forward([*before, *row.ids[:-1]], keep_logits=1)
                file.seek(whole)
                file.write(cached.states[len(before) :].half().cpu().numpy().tobytes())
            whole = end
            yield done
        file.truncate(whole)
