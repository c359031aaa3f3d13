"""How long a visitor waits after `make run` on a warm cache, in seconds here: `python benchmarks/startup.py`."""

import os
import socket
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import httpx
import typer
from gradio_client import Client

ROOT = Path(__file__).parents[1]


def main(runs: int = 3) -> None:
    seen = [once() for _ in range(runs)]
    for i, name in enumerate(("page", "first token of a first race")):
        times = [run[i] for run in seen]
        print(f"{name}: median {median(times):.1f} s of {', '.join(f'{seconds:.1f}' for seconds in times)}")


def once() -> tuple[float, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = perf_counter()
    command = ["make", "run", f"PORT={port}"]
    page = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}/"
        while True:
            try:
                httpx.get(address)
                break
            except httpx.TransportError:
                sleep(0.05)
        there = perf_counter() - began
        job = Client(address, verbose=False).submit("Name three fruits.", api_name="/race")
        for log in job:
            if '"e":"step"' in log:
                return there, perf_counter() - began
        raise SystemExit("the race ended without a token")
    finally:
        os.killpg(page.pid, 15)
        page.wait()


if __name__ == "__main__":
    typer.run(main)
