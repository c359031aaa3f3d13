"""A recorded run: settings, names, machine and every step, in one JSON file that needs no model to be read.

The file's figures are not stored but folded from its steps again, so they cannot disagree with them.
"""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specdemo.engine.types import Step
from specdemo.measure.metrics import DEFINITIONS, Tally

FORMAT = "specdemo trace"
VERSION = 1


class TraceError(ValueError):
    """The file is not a trace that can be read here; the message says why."""


@dataclass(slots=True)
class Trace:
    """One race, written down. Times are own-clock seconds, memory is bytes.

    settings: the request as given. models: names and weight bytes. machine: what it ran on. steps: (path name,
    Step) in the order they happened. pieces: the text that each committed token added, by path. vocabulary: text of
    every drafted id, so that rejected ones can be shown.
    """

    settings: dict[str, Any]
    models: dict[str, Any]
    machine: dict[str, Any]
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


_ADAPTER = TypeAdapter(Trace)


def write(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`. A crash in the middle leaves the old file or none, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_ADAPTER.dump_json(trace))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Trace:
    """Read a trace. Raises TraceError for a file that is corrupt, foreign, or of a newer version."""
    try:
        raw = TypeAdapter(dict[str, Any]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise TraceError(f"{path.name} cannot be read as JSON; it may be cut off or not a trace at all") from error
    if raw.get("format") != FORMAT:
        raise TraceError(f"{path.name} is JSON, but not a trace of this program")
    version = raw.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise TraceError(f"{path.name} has trace version {version}, this program reads up to {VERSION}; update it")
    try:
        return _ADAPTER.validate_python(raw)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise TraceError(f"{path.name} is damaged at {where}: {error.errors()[0]['msg']}") from error
