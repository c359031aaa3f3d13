"""The one device and the one thread that works on it.

Everything that computes (loading, racing) is a job of this thread, so the device has exactly one owner, jobs of two
visitors never overlap, and kernels always run on the same pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import psutil

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
FRAME_S = 0.1  # seconds of work between two looks at the outside world
PATIENCE_S = 0.5  # seconds without a frame before the caller is told that there is none; long: a word costs work too
LOOK_S, IDLE = 0.02, 0.7  # seconds a look, and the share of all processors that must be idle in it

_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


def pick() -> torch.device:
    """The first CUDA GPU, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batches(start: Callable[[], Iterator[T]], cancelled: Event, settle_s: float) -> Iterator[list[T]]:
    """Run an iterator on the device's thread; yields what each frame of about FRAME_S produced, maybe nothing.

    The device rests while the caller handles a batch, so handling it cannot slow what is being measured. If the
    caller goes away or sets `cancelled`, the job ends after the item in progress and the iterator is closed on the
    thread it ran on; nobody waits for it here. settle_s: where a browser on this machine draws each batch, seconds to
    wait for it before the next, at most; else 0.
    """
    iterator: Iterator[T] | None = None
    context = copy_context()  # ZeroGPU asks whose race it is; Gradio keeps that in a context variable

    def advance() -> tuple[list[T], bool]:
        nonlocal iterator
        if iterator is None:
            iterator = start()
        items: list[T] = []
        began = perf_counter()
        while not cancelled.is_set() and perf_counter() - began < FRAME_S:
            try:
                items.append(next(iterator))
            except StopIteration:
                return items, True
        return items, cancelled.is_set()

    def close() -> None:
        if iterator is not None:
            iterator.close()  # type: ignore[attr-defined]

    try:
        done, drawn = False, False
        while not done:
            if drawn:
                settle(settle_s, cancelled)
            job = _worker.submit(context.run, advance)
            while wait([job], timeout=PATIENCE_S).not_done:
                yield []
            items, done = job.result()
            yield items
            drawn = True
    finally:
        cancelled.set()
        _worker.submit(context.run, close)


def settle(most_s: float, cancelled: Event) -> None:
    """Wait until the machine's processors have been idle for two looks in a row, at most `most_s` seconds.

    A browser on this machine draws a frame some ten milliseconds after it was sent. On a processor with few cores that
    work would be paid for by the path that runs next; this pause is on nobody's clock.
    """
    deadline, calm = perf_counter() + most_s, 0
    while calm < 2 and perf_counter() < deadline:
        before = psutil.cpu_times().idle
        if cancelled.wait(LOOK_S):
            return
        idle = psutil.cpu_times().idle - before
        calm = calm + 1 if idle >= IDLE * LOOK_S * (psutil.cpu_count() or 1) else 0


def submit(job: Callable[[], T]) -> T:
    """Run `job` on the device's thread and wait for its result."""
    return _worker.submit(job).result()
