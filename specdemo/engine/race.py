"""The race: one scheduler owns the device and always advances the path that has used the least of it.

Two paths on one device slow each other down, so wall-clock figures of a naive concurrent run are wrong for both.
Here each path has its own clock, which runs only while that path does; both stream at once, and each figure is what
that path reaches alone.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from threading import Event
from time import perf_counter
from typing import TypeVar

from specdemo.engine.types import Finish, Step

Name = TypeVar("Name", bound=Hashable)
log = logging.getLogger(__name__)
REASON = 200  # characters of an exception's message that are kept


def survivable(path: Iterator[Step]) -> Iterator[Step]:
    """The steps of `path`; where it breaks, a last one that says so, and whoever runs beside it goes on."""
    try:
        yield from path
    except Exception as error:
        yield broken(error)


def broken(error: Exception) -> Step:
    """The last step of a path that broke; call it where the exception is handled."""
    log.exception("a path broke")
    reason = (str(error).splitlines() or [""])[0][:REASON]
    kind = type(error).__name__
    return Step((), finish=Finish.FAILED, note=f"{kind}: {reason}" if reason else kind)


def timed(
    path: Iterator[Step], synchronize: Callable[[], None], memory: Callable[[], tuple[int, int]]
) -> Iterator[Step]:
    """The steps of `path`, each stamped with the own-clock seconds it took.

    synchronize: waits for the device, so that a step's time includes its own kernels and no other's.
    memory: returns (process bytes, device bytes); it is asked outside the clock.
    """
    while True:
        synchronize()
        start = perf_counter()
        step = next(path, None)
        synchronize()
        seconds = perf_counter() - start
        if step is None:
            return
        process, device = memory()
        yield replace(step, seconds=seconds, process_bytes=process, device_bytes=device)


def race(paths: Mapping[Name, Iterator[Step]], cancelled: Event) -> Iterator[tuple[Name, Step]]:
    """Advance timed paths until all have finished or `cancelled` is set; yields (path name, step).

    A path that has used less of the device goes first; the order of `paths` decides a tie. Cancelling is heard
    after every step. The paths are closed when the race ends, however it ends.
    """
    used = dict.fromkeys(paths, 0.0)
    running = dict(paths)
    try:
        while running and not cancelled.is_set():
            name = min(running, key=used.__getitem__)
            step = next(running[name], None)
            if step is None:
                del running[name]
                continue
            used[name] += step.seconds
            yield name, step
    finally:
        for path in paths.values():
            path.close()  # type: ignore[attr-defined]
