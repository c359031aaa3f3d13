"""The page under load and left alone: `python benchmarks/soak.py`. Prints figures; ends with 1 if one is wrong.

The crowd: clients and browser tabs that all ask at once, fewer than the queue holds; then more than it holds.
The drip: one visitor after the other, who waits for the answer, stops it, closes the page, or asks for nonsense. After
each, a small race says how soon the device is free again. Memory, threads and files are the server's own.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import typer
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import Browser, sync_playwright
from rich.progress import track
from server import chromium, serving

QUEUE = 24
PROMPT = "Name the days of the week."
SHORT = {"prompt": PROMPT, "mode": "ngram", "dtype": "fp32", "max_new_tokens": 16}
LONG_PROMPT = "Tell me everything about the sea."
LONG = SHORT | {"prompt": LONG_PROMPT, "mode": "tree", "max_new_tokens": 512}
NONSENSE: tuple[dict[str, object], ...] = (
    {"prompt": ""},
    {"prompt": 7},
    {"prompt": "a" * 1_000_000},
    {"mode": "magic"},
    {"max_new_tokens": "many"},
    {"temperature": -1},
    {"stop": {"a": 1}},
    {"pair": "../etc"},
)
STEP_S = 2.0  # a step, and what the network of this machine takes: the device must be free by then
SLOPE = 50.0  # MB of memory that 100 races may add
WATCH_PLACES = """() => {
  window.placed = false;
  const turn = document.querySelector("#turn");
  const look = () => { window.placed ||= /queue: \\d+\\/\\d+/.test(turn.innerText); };
  new MutationObserver(look).observe(turn, { subtree: true, childList: true, characterData: true });
}"""
Answer = tuple[list[int], str]  # the ids of the plain path, and the verdict


def main(clients: int = 20, tabs: int = 3, races: int = 200, seed: int = 1) -> None:
    settings = {"SPECDEMO_QUEUE__MAX_SIZE": str(QUEUE), "SPECDEMO_DEFAULTS__MAX_NEW_TOKENS": "16"}
    with serving(None, **settings) as (address, process), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        once(Client(address, verbose=False))  # what is set up only once is no leak
        faults = [*crowd(address, browser, clients, tabs), *overflow(address)]
        faults += drip(address, browser, process, races, random.Random(seed))
        browser.close()
    for fault in faults:
        print("FAULT:", fault)
    raise typer.Exit(1 if faults else 0)


def once(client: Client, **changes: object) -> Answer:
    found = client.predict(api_name="/race_once", **SHORT | changes)
    return found["plain"]["token_ids"], found["lossless"]["verdict"]


def crowd(address: str, browser: Browser, clients: int, tabs: int) -> list[str]:
    """Everybody at once, each from a connection of its own; all must get the same right answer."""
    expected = once(Client(address, verbose=False))
    visitors = [Client(address, verbose=False) for _ in range(clients)]
    pages = [browser.new_context().new_page() for _ in range(tabs)]
    for page in pages:
        page.goto(address)
        page.wait_for_selector(".hint")
        page.fill("#prompt textarea", PROMPT)
        page.evaluate(WATCH_PLACES)
    began = time.monotonic()
    jobs = [visitor.submit(api_name="/race_once", **SHORT) for visitor in visitors]
    for page in pages:
        page.click("#run")
    answers = []
    for job in jobs:
        found = job.result(timeout=600)
        answers.append((found["plain"]["token_ids"], found["lossless"]["verdict"]))
    for page in pages:
        page.wait_for_selector(".verdict[data-kind=identical]", timeout=600_000)
    seconds = time.monotonic() - began
    placed = sum(page.evaluate("window.placed") for page in pages)
    wrong = sum(answer != expected for answer in answers)
    print(f"crowd: {clients} clients and {tabs} tabs in {seconds:.0f} s; wrong answers {wrong}; places shown {placed}")
    for page in pages:
        page.context.close()
    faults: list[str] = []
    check(not wrong, f"{wrong} answers of the crowd are wrong", faults)
    check(placed == tabs, f"only {placed} of {tabs} tabs showed a place in the queue", faults)
    return faults


def overflow(address: str) -> list[str]:
    """One race holds the device, the queue is filled, and five more ask."""
    holder = Client(address, verbose=False)
    held = holder.submit(api_name="/race", **LONG)
    while not held.outputs():
        time.sleep(0.1)

    def ask(visitor: Client) -> str:
        try:
            return once(visitor)[1]
        except Exception as error:  # whatever a visitor is told is looked at below
            return str(error)

    visitors = [Client(address, verbose=False) for _ in range(QUEUE + 5)]
    with ThreadPoolExecutor(len(visitors)) as pool:
        asked = [pool.submit(ask, visitor) for visitor in visitors]
        time.sleep(5)
        held.cancel()
        told = Counter(job.result() for job in asked)
    served = told.pop("identical", 0)
    refused = sum(count for words, count in told.items() if re.search("queue is full", words, re.I))
    print(f"overflow: {len(visitors)} ask behind one race, {QUEUE} may wait; served {served}, told so {refused}")
    return [] if (served, refused) == (QUEUE, 5) else [f"the queue's bound: {told}"]


def drip(address: str, browser: Browser, process: psutil.Process, races: int, chance: random.Random) -> list[str]:
    """One visitor after the other."""
    client = Client(address, verbose=False)
    expected = once(client)
    faults: list[str] = []
    ways: dict[str, Callable[[], None]] = {
        "finished": lambda: check(once(client) == expected, "an answer is wrong", faults),
        "stopped": lambda: stopped(client, chance.uniform(0.1, 2)),
        "left": lambda: left(browser, address, chance.uniform(0.1, 2)),
        "nonsense": lambda: nonsense(client, chance.choice(NONSENSE), faults),
    }
    seen: Counter[str] = Counter()
    sizes, waits, usage = [], [], []
    for _ in track(range(races), "Soaking"):
        way = chance.choices(list(ways), (1, 3, 2, 1))[0]
        seen[way] += 1
        ways[way]()
        waits.append(wait_for_the_device(client))
        sizes.append(process.memory_info().rss / 1e6)
        usage.append((process.num_threads(), process.num_fds()))
    check(once(client) == expected, "the last race is wrong", faults)
    settled = len(sizes) // 4  # the first quarter fills caches and pools
    slope = 100 * np.polyfit(np.arange(len(sizes) - settled), sizes[settled:], 1)[0]
    threads, files = zip(*usage, strict=True)
    print("drip:", ", ".join(f"{way} {count}" for way, count in seen.items()))
    print(f"  device free after: median {np.median(waits):.2f} s, longest {max(waits):.2f} s")
    print(f"  memory: {sizes[0]:.0f} MB at first, {sizes[-1]:.0f} at the end, {slope:+.1f} MB in 100 races")
    print(
        f"  threads: {threads[settled]} after a quarter, {threads[-1]} at the end; files: {files[settled]}, {files[-1]}"
    )
    check(max(waits) < STEP_S, f"the device was held for {max(waits):.1f} s", faults)
    check(slope < SLOPE, f"memory grows by {slope:.0f} MB in 100 races", faults)
    check(threads[-1] <= threads[settled] + 4, f"threads grow from {threads[settled]} to {threads[-1]}", faults)
    check(files[-1] <= files[settled] + 10, f"open files grow from {files[settled]} to {files[-1]}", faults)
    return faults


def check(right: bool, fault: str, faults: list[str]) -> None:
    if not right:
        faults.append(fault)


def wait_for_the_device(client: Client) -> float:
    """Seconds until the smallest race has been served, less what it took on the device."""
    began = time.monotonic()
    found = client.predict(api_name="/race_once", **SHORT | {"max_new_tokens": 2})
    return time.monotonic() - began - found["plain"]["latency_s"] - found["speculative"]["latency_s"]


def stopped(client: Client, seconds: float) -> None:
    job = client.submit(api_name="/race", **LONG)
    time.sleep(seconds)
    job.cancel()


def left(browser: Browser, address: str, seconds: float) -> None:
    """A page that is closed in the middle of its race."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(".hint")
    page.fill("#prompt textarea", LONG_PROMPT)
    page.click("#run")
    page.wait_for_timeout(1000 * seconds)
    context.close()


def nonsense(client: Client, changes: dict[str, object], faults: list[str]) -> None:
    """A call that cannot be meant is refused in one line that names the field."""
    try:
        once(client, **changes)
        faults.append(f"{changes} was raced")
    except AppError as error:
        field = next(iter(changes))
        check(str(error).startswith(f"{field}: ") and "\n" not in str(error), f"{changes}: {error}", faults)
    log = json.loads(list(client.submit(api_name="/race", **SHORT | changes))[-1].splitlines()[-1])
    check(log["e"] == "error", f"{changes}: the stream ends with {log}", faults)


if __name__ == "__main__":
    typer.run(main)
