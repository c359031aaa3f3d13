"""What being watched costs the paths: `python benchmarks/streaming.py`. Ratios within one run; some minutes.

One server, one prompt, three ways to ask, in turns: one answer at the end (nothing is streamed), a client that reads
the stream, and a real headless Chromium on the same machine that draws it. All figures are by own clocks.

`--apart` gives the server the first processor and whoever watches the others, and lets the server take the browser
for one of another machine: then only what the server itself does to stream is paid for by the paths.
"""

import json
import os
from collections.abc import Callable
from statistics import median

import typer
from gradio_client import Client
from playwright.sync_api import Browser, sync_playwright
from rich.progress import track
from server import chromium, serving

PROMPT = "List ten things to pack for a week of hiking in the mountains."
ELSEWHERE = "192.0.2.1"  # an address that is kept for documentation (RFC 5737)
Figures = dict[str, float]


def main(runs: int = 5, tokens: int = 96, apart: bool = False) -> None:
    processors = sorted(os.sched_getaffinity(0))
    if apart:
        os.sched_setaffinity(0, processors[1:])  # before anything is started: children inherit it
    own = processors[:1] if apart else processors
    threads = str(len(own))
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    with (
        serving(own, SPECDEMO_DEFAULTS__MAX_NEW_TOKENS=str(tokens), **environment) as (address, _),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        client = Client(address, verbose=False)
        ask = {"prompt": PROMPT, "max_new_tokens": tokens}
        cases: dict[str, Callable[[], Figures]] = {
            "unwatched": lambda: unwatched(client, ask),
            "stream": lambda: streamed(client, ask),
            "browser": lambda: drawn(browser, address, {"X-Forwarded-For": ELSEWHERE} if apart else {}),
        }
        cases["unwatched"]()
        seen = [{name: case() for name, case in cases.items()} for _ in track(range(runs), "Measuring")]
        browser.close()
    for side in ("plain", "speculative"):
        for name in ("stream", "browser"):
            ratio = median(run[name][side] / run["unwatched"][side] for run in seen)
            print(f"{side}, {name} / unwatched: {ratio:.3f}")
        print(side, *(f"{name} {median(run[name][side] for run in seen):.1f} tokens/s" for name in cases))


def unwatched(client: Client, ask: dict) -> Figures:
    answer = client.predict(**ask, api_name="/race_once")
    return {side: answer[side]["decode_tokens_per_s"] for side in ("plain", "speculative")}


def streamed(client: Client, ask: dict) -> Figures:
    log = list(client.submit(**ask, api_name="/race"))[-1]
    figures = [event for event in map(json.loads, log.splitlines()) if event["e"] == "figures"][-1]
    return {side: float(figures["values"]["decode_tokens_per_s"][side]) for side in ("plain", "speculative")}


def drawn(browser: Browser, address: str, headers: dict[str, str]) -> Figures:
    page = browser.new_page(viewport={"width": 1400, "height": 1200}, extra_http_headers=headers)
    page.goto(address)
    page.fill("#prompt textarea", PROMPT)
    page.click("#run")
    while not page.evaluate("document.querySelector('.verdict')?.textContent"):
        page.wait_for_timeout(1000)  # a waiting locator would look at every frame, which costs what is measured here
    row = page.locator(".board tr").filter(has_text="Decode")
    plain, speculative = row.locator("td").all_inner_texts()[:2]
    page.close()
    return {"plain": float(plain), "speculative": float(speculative)}


if __name__ == "__main__":
    typer.run(main)
