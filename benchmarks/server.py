"""The page in a process of its own, for benchmarks that watch it from outside."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sys import executable
from time import sleep

import httpx
import psutil

ROOT = Path(__file__).parents[1]


@contextmanager
def serving(processors: Sequence[int] | None = None, **environment: str) -> Iterator[tuple[str, psutil.Process]]:
    """Serve the page on a free port, on some processors only if they are given; yields its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = subprocess.Popen(
        [executable, ROOT / "app.py"],
        env=os.environ | {"PORT": str(port)} | environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=partial(os.sched_setaffinity, 0, processors) if processors else None,
    )
    try:
        address = f"http://127.0.0.1:{port}/"
        while not _answers(address):
            if app.poll() is not None:
                raise SystemExit("the page did not start")
            sleep(0.5)
        yield address, psutil.Process(app.pid)
    finally:
        app.terminate()
        app.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).is_success
    except httpx.TransportError:
        return False


def chromium() -> str | None:
    """The browser to start: $CHROMIUM or the system's; None leaves it to Playwright."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")
