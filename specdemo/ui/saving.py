"""A trace as a file for the visitor to keep."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from specdemo.measure.trace import Trace, write


@contextmanager
def saved(trace: Trace) -> Iterator[Path]:
    """`trace` as a file; it is gone afterwards, so yield it inside: Gradio copies it meanwhile."""
    folder = Path(mkdtemp())
    try:
        write(trace, folder / "race.json")
        yield folder / "race.json"
    finally:
        shutil.rmtree(folder)
