"""The one device and the one thread that works on it.

Everything that computes (loading, racing) is a job of this thread, so the device has exactly one owner, jobs of two
visitors never overlap, and kernels always run on the same pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
FRAME_S = 0.1  # seconds of work between two looks at the outside world

_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


def pick() -> torch.device:
    """The first CUDA GPU, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batches(start: Callable[[], Iterator[T]], cancelled: Event) -> Iterator[list[T]]:
    """Run an iterator on the device's thread; yields what each frame of about FRAME_S produced, maybe nothing.

    The device rests while the caller handles a batch, so rendering cannot slow what is being measured. If the
    caller goes away or sets `cancelled`, the job ends after the item in progress and the iterator is closed on the
    thread it ran on; nobody waits for it here.
    """
    iterator: Iterator[T] | None = None

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
        done = False
        while not done:
            job = _worker.submit(advance)
            while wait([job], timeout=FRAME_S).not_done:
                yield []
            items, done = job.result()
            yield items
    finally:
        cancelled.set()
        _worker.submit(close)


def submit(job: Callable[[], T]) -> T:
    """Run `job` on the device's thread and wait for its result."""
    return _worker.submit(job).result()
