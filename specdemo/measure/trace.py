"""A recorded run: settings, names, machine and every step, in one JSON file that needs no model to be read.

The file's figures are not stored but folded from its steps again, so they cannot disagree with them.
A file may come from anywhere: `read` believes nothing in it that it has not looked at.
"""

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from specdemo.engine.types import Step
from specdemo.measure.metrics import DEFINITIONS, Tally

PATHS = ("plain", "speculative")
FORMAT = "specdemo trace"
VERSION = 1
MAX_BYTES = 8_000_000  # of JSON; a race of 512 tokens with trees of 16 nodes writes about an eighth of it
MAX_S = 3600.0  # own-clock seconds of a path; nobody watches for longer
MAX_NODES = 1000  # of one step
LARGEST = 1e9  # size of a logarithm or logit; sums of these stay numbers
INTEGER = 2**63 - 1  # ids and bytes are what a machine counts with
GZIP = b"\x1f\x8b"


class TraceError(ValueError):
    """The file is not a trace that can be read here; the message says why, in one line."""


@dataclass(slots=True)
class Trace:
    """One race, written down. Times are own-clock seconds, memory is bytes.

    settings: the request as given. models: names and weight bytes. machine: what it ran on. steps: (path name,
    Step) in the order they happened. pieces: the text that each committed token added, by path. vocabulary: text of
    every drafted id, so that rejected ones can be shown.
    """

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    settings: dict[str, Any]
    models: dict[str, Any]
    machine: dict[str, JsonValue]
    steps: list[tuple[str, Step]] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)
    vocabulary: dict[int, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=lambda: dict(DEFINITIONS))
    format: str = FORMAT
    version: int = VERSION

    def tallies(self) -> dict[str, Tally]:
        """The figures of each path, folded from the steps."""
        tallies: dict[str, Tally] = {}
        for name, step in self.steps:
            tallies.setdefault(name, Tally()).add(step)
        return tallies


Count = Annotated[int, Field(ge=0, le=INTEGER)]


class _Settings(BaseModel):
    """What a replay needs of the settings; whatever else a run was asked for is kept as it is."""

    prompt: str
    mode: str
    dtype: str
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    top_k: Count
    top_p: Annotated[float, Field(ge=0, le=1)]
    seed: Count
    max_new_tokens: Count
    draft_length: Count
    quantization: str = "none"
    quantize: str = "target"
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    exact: bool = False


class _Models(BaseModel):
    pair: str
    target_weight_bytes: Count
    draft_weight_bytes: Count


_ADAPTER = TypeAdapter(Trace)
_PARTS: dict[str, type[BaseModel]] = {"settings": _Settings, "models": _Models}


def write(trace: Trace, path: Path) -> int:
    """Write `trace` to `path`, gzipped if that ends in .gz; returns the bytes of its JSON (`read` takes MAX_BYTES).

    A crash in the middle leaves the old file or none, never half of one.
    """
    content = _ADAPTER.dump_json(trace)
    size = len(content)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return size


def read(path: Path, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace, gzipped or not. Raises TraceError for a file that is too large, corrupt, foreign, of a newer
    version, or wrong anywhere inside."""
    name = _short(path.name)
    content = _content(path, name, max_bytes)
    try:
        head = TypeAdapter(dict[str, JsonValue]).validate_json(content)
    except ValidationError:
        raise TraceError(f"{name} cannot be read as JSON; it may be cut off or not a trace at all") from None
    if head.get("format") != FORMAT:
        raise TraceError(f"{name} is JSON, but not a trace of this program")
    version = head.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        shown = _short(version)
        raise TraceError(f"{name} has trace version {shown}, this program reads up to {VERSION}; update it")
    try:
        trace = _ADAPTER.validate_json(content, strict=True)
        for part, model in _PARTS.items():
            model.model_validate(getattr(trace, part), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TraceError(f"{name} is damaged at {_short(where)}: {first['msg']}") from None
    for fault in _faults(trace):
        raise TraceError(f"{name} is damaged at {fault}")
    return trace


def _content(path: Path, name: str, max_bytes: int) -> bytes:
    """The JSON in a file, however it is packed, of at most max_bytes: a small file may unpack to any size."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise TraceError(f"{name} cannot be read; it may be cut off or gone: save or choose it again") from None
    if len(content) > max_bytes:
        raise TraceError(f"{name} is larger than the {max_bytes / 1e6:g} MB that are read; record fewer tokens")
    return content


def _faults(trace: Trace) -> Iterator[str]:
    """Where a trace whose types are right contradicts itself or holds what no run can write."""
    tallies = {name: Tally() for name in PATHS}
    for i, (path, step) in enumerate(trace.steps):
        if path not in PATHS:
            yield f"steps.{i}: there is no path {_short(path)}"
            return
        tallies[path].add(step)
        for where, fault in _step_faults(trace, step):
            yield f"steps.{i}.{where}: {fault}"
    for path, tally in tallies.items():
        if tally.latency_s > MAX_S:
            yield f"steps: {path} takes more than {MAX_S:g} seconds"
        if tally.tokens != len(trace.pieces.get(path, [])):
            yield f"pieces.{path}: there must be one for each of the {tally.tokens} tokens"
        if tally.tokens > trace.settings["max_new_tokens"]:
            yield f"settings.max_new_tokens: {path} has more tokens than that"


def _step_faults(trace: Trace, step: Step) -> Iterator[tuple[str, str]]:
    if not 1e-9 <= step.seconds <= MAX_S:
        yield "seconds", f"must be from a nanosecond to {MAX_S:g} seconds"
    if step.draft_s < 0 or step.verify_s < 0 or step.draft_s + step.verify_s > 1.001 * step.seconds:
        yield "draft_s", "must not be negative, nor be more than the whole step together with verify_s"
    if not all(0 <= amount <= INTEGER for amount in (step.cache_bytes, step.process_bytes, step.device_bytes)):
        yield "cache_bytes", "an amount of memory is out of range"
    for token in step.tokens:
        if not 0 <= token.id <= INTEGER or max(abs(token.logprob), abs(token.margin)) > LARGEST:
            yield "tokens", "a number is out of range"
    if len(step.nodes) > MAX_NODES:
        yield "nodes", f"there are more than {MAX_NODES}"
    for i, node in enumerate(step.nodes):
        if not -1 <= node.parent < i:
            yield f"nodes.{i}.parent", "must be -1 or an earlier node"
        if node.id not in trace.vocabulary:
            yield f"nodes.{i}.id", "has no text in vocabulary"


def _short(value: object) -> str:
    """What a stranger wrote, fit for a message: one line, printable, not long."""
    words = str(value)
    printable = "".join(char if char.isprintable() else "\ufffd" for char in words[:81])
    return printable if len(words) <= 80 else printable[:79] + "…"
