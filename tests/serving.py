"""The real page on a free local port, served as users get it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from specdemo.config import Settings
from specdemo.ui.build import build, serving

HOST = "127.0.0.1"


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """Serve the page that `settings` describe; yields its address."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    page = build(settings)
    page.launch(**serving(HOST, port), prevent_thread_lock=True, quiet=True)
    try:
        yield f"http://{HOST}:{port}/"
    finally:
        page.close(verbose=False)
