"""A benchmark's plan and its rows: every prompt in every mode, each by its own clock.

Rows are plain values and are written as they come, one JSON line each, behind a line that says what was planned on
which machine; a run that was stopped or killed goes on behind its last whole row.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specdemo.config import LENGTHS
from specdemo.engine.types import Origin, Token
from specdemo.measure.metrics import Tally, lossless, speed_up
from specdemo.models.pairs import PAIRS

SETS = Path(__file__).parents[1] / "prompts"
FORMAT, VERSION = "specdemo benchmark", 1
PLAIN = "plain"
# What transformers' generate() can do by itself; ":N" behind the last two drafts N tokens each time.
PEER = re.compile(r"transformers (generate|(?:prompt lookup|assisted)(?::[1-9][0-9]{0,5})?)")
OWN_LENGTH = re.compile(r"([a-z-]+):([1-9][0-9]{0,5})")
# The ways beside a pair: at their own settings (a guide's, for prompt lookup), and three tokens at a time.
PEERS = ("transformers generate", "transformers prompt lookup", "transformers prompt lookup:3")
ASSISTED = ("transformers assisted", "transformers assisted:3")  # needs a draft model
HIDDEN = ("ids", "ends", "margins")  # of a row: what a resumed run compares with; not part of the results


def is_peer(mode: str) -> bool:
    """Whether a mode is one of transformers."""
    return PEER.fullmatch(mode) is not None


def way(name: str) -> tuple[str, int | None]:
    """A mode and the draft length that its name gives, if any: "chain:2" is ("chain", 2)."""
    found = None if is_peer(name) else OWN_LENGTH.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


def peers(pair: str, target: str | None, draft: str | None) -> tuple[str, ...]:
    """The modes of transformers beside a pair, or beside models that are named in its place."""
    own = PAIRS.get(str(pair)) if target is None else None
    return PEERS if draft is None and (own is None or own.draft is None) else (*PEERS, *ASSISTED)


class BenchError(ValueError):
    """The benchmark cannot be run, or gone on with; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Prompt:
    id: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. modes: of drafting and of transformers; plain decoding always comes first.

    settings: fields of a request that are the same in all rows. dtypes, quantizations, draft_lengths: all combinations;
    no draft lengths: each mode's own. "chain:2" is a mode at a length that is its own here. Give each mode, dtype,
    quantization and length once.
    """

    prompts: tuple[Prompt, ...]
    modes: tuple[str, ...]
    dtypes: tuple[str, ...] = ("auto",)
    quantizations: tuple[str, ...] = ("none",)
    draft_lengths: tuple[int, ...] = ()
    repeats: int = 1
    settings: dict[str, Any] | None = None

    @property
    def answers(self) -> int:
        """How many cases there are, without making them: a visitor's plan may be far too large."""
        return len(self._ways()) * len(self.prompts) * self.repeats * len(self.dtypes) * len(self.quantizations)

    def command(self, prompts: str) -> str:
        """What measures this plan again from a terminal. prompts: the name of a set, or of a file."""
        options = {
            "prompts": prompts,
            "modes": ",".join(self.modes),
            "dtypes": ",".join(self.dtypes),
            "quantizations": ",".join(self.quantizations),
            "draft-lengths": ",".join(map(str, self.draft_lengths)),
            "repeats": self.repeats,
        } | {name.replace("_", "-"): value for name, value in (self.settings or {}).items()}
        given = [f"--{name}={value}" for name, value in options.items() if value not in ("", None)]
        return shlex.join(["python", "-m", "specdemo", "bench", *given])

    def cases(self) -> list[Case]:
        """In the order in which they run: what shares a model together, then round by round over the prompts."""
        return [
            Case(prompt, mode, dtype, quantization, length, repeat)
            for quantization in self.quantizations
            for dtype in self.dtypes
            for repeat in range(self.repeats)
            for prompt in self.prompts
            for mode, length in self._ways()
        ]

    def _ways(self) -> Sequence[tuple[str, int | None]]:
        """Modes with their draft lengths: plain decoding first, transformers' ways last, so that ours are one heat."""
        found: list[tuple[str, int | None]] = [(PLAIN, None)]
        for name in self.modes:
            mode, length = way(name)
            if length or is_peer(mode):
                found.append((mode, length))
            else:
                suits = LENGTHS.get(mode, 1)  # an unknown mode is refused later
                found += [(mode, length) for length in self.draft_lengths or (suits,)]
        return sorted(dict.fromkeys(found), key=lambda found: is_peer(found[0]))


@dataclass(frozen=True, slots=True)
class Case:
    """One answer. draft_length None: nothing is drafted here."""

    prompt: Prompt
    mode: str
    dtype: str
    quantization: str
    draft_length: int | None
    repeat: int

    @property
    def key(self) -> tuple[Any, ...]:
        return self.prompt.id, self.mode, self.dtype, self.quantization, self.draft_length, self.repeat

    @property
    def heat(self) -> tuple[Any, ...]:
        """Cases of equal heat are measured together, step by step in turn. generate() runs to its end: it is alone."""
        return self.key if is_peer(self.mode) else replace(self, mode="", draft_length=None).key

    @property
    def reference(self) -> tuple[Any, ...]:
        """The key of the plain answer that this one is compared with."""
        return replace(self, mode=PLAIN, draft_length=None).key


Row = dict[str, Any]
NO_SPLIT = dict.fromkeys(("draft", "verify", "other"))  # of what is not our loop


def row(case: Case, tally: Tally, plain: Tally, **more: Any) -> Row:
    """The figures of one answer, beside the plain one to the same prompt."""
    verdict = lossless(plain, tally, more.pop("greedy"))
    return {
        "prompt": case.prompt.id,
        "kind": case.prompt.kind,
        "mode": case.mode,
        "quantization": case.quantization,
        "dtype": more.pop("dtype"),
        "draft_length": case.draft_length,
        "repeat": case.repeat,
        "tokens": tally.tokens,
        "latency_s": tally.latency_s,
        "ttft_s": tally.ttft_s,
        "decode_tokens_per_s": tally.decode_tokens_per_s,
        "score": tally.score,
        "tokens_per_step": tally.tokens_per_step if tally.steps else None,
        "acceptance_rate": tally.acceptance_rate,
        "speed_up": speed_up(plain, tally),
        "lossless": verdict.verdict,
        "diverged_at": verdict.position,
        "margin": verdict.margin,
        **{f"{part}_share": share for part, share in (tally.time_split if tally.steps else NO_SPLIT).items()},
        "steps": tally.steps,
        "kept": tally.kept,
        **more,
        "asked": list(case.key),
        "ids": tally.token_ids,
        "margins": [token.margin for token in tally.committed],
        "ends": tally.ends,
        "finish": tally.finish,
    }


def tally_of(row: Row) -> Tally:
    """As much of a row's tally as a comparison needs."""
    committed = [Token(id, Origin.TARGET, 0.0, m) for id, m in zip(row["ids"], row["margins"], strict=True)]
    return Tally(committed=committed, ends=[(n, s) for n, s in row["ends"]], finish=row["finish"])


class Book:
    """The rows of a plan in a file, or in memory only. Raises BenchError for a file of another plan or machine."""

    def __init__(self, plan: Plan, machine: dict[str, Any], path: Path | None = None) -> None:
        self.path = path
        self.plan = plan
        self.rows: list[Row] = []
        head = json.loads(json.dumps({"format": FORMAT, "version": VERSION, "plan": asdict(plan), "machine": machine}))
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._continue(path, head)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head) + "\n")

    def _continue(self, path: Path, head: dict[str, Any]) -> None:
        try:
            text = path.read_text()
            first, *lines = text.split("\n")[:-1]  # a killed run may have left half a line
            found = json.loads(first)
            self.rows = [json.loads(line) for line in lines]
            self._by_key()
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path} is not a file of this benchmark; choose another one") from error
        for part in head:
            if not isinstance(found, dict) or found.get(part) != head[part]:
                raise BenchError(f"{path} was begun with another {part}; choose another file, or delete it")
        os.truncate(path, len("".join(line + "\n" for line in (first, *lines)).encode()))

    def _by_key(self) -> dict[tuple[Any, ...], Row]:
        return {tuple(row["asked"]): row for row in self.rows}

    def get(self, key: tuple[Any, ...]) -> Row | None:
        return self._by_key().get(key)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def results(rows: Sequence[Row]) -> list[Row]:
    """The rows without what only a resumed run needs."""
    return [{name: value for name, value in row.items() if name not in (*HIDDEN, "asked", "finish")} for row in rows]


def prompt_set(name: str) -> list[Prompt]:
    """A set that comes with the demo: "article", the article's five; "own", over eleven kinds."""
    return read_prompts((SETS / f"{name}.jsonl").read_text(), jsonl=True)[0]


def read_prompts(text: str, jsonl: bool) -> tuple[list[Prompt], list[str]]:
    """Prompts of a .txt file (one a line) or a .jsonl file ({"prompt"}, and "id" and "kind" where it likes), and what
    is wrong with the lines that are left out, each with its number."""
    found, wrong = [], []
    ids: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):  # and at nothing else: JSON may hold other line breaks
        line = line.rstrip("\r")
        if not line.strip():
            continue
        if not jsonl:
            found.append(Prompt(f"line {number}", "text", line))
            continue
        try:
            fields = json.loads(line)
            prompt = fields["prompt"]
            if not isinstance(prompt, str) or not prompt.strip():
                raise TypeError("its prompt is empty or no text")
            id = str(fields.get("id", f"line {number}"))
            id = f"{id} (line {number})" if id in ids else id  # rows are told apart by it
            ids.add(id)
            found.append(Prompt(id, str(fields.get("kind", "text")), prompt))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = "it has no prompt" if isinstance(error, KeyError) else str(error)
            wrong.append(f"line {number}: {reason}")
    return found, wrong
