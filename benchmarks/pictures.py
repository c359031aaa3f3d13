"""Pictures of every tab for docs, light and dark, wide and narrow, after real runs.

`python benchmarks/pictures.py`; `--tab benchmark` takes those of one tab anew.
"""

from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from playwright.sync_api import Page, sync_playwright
from rich.progress import track
from server import chromium, serving

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PROMPT = "List ten things to pack for a week of hiking in the mountains, with a reason for each."
WIDTHS = {"wide": 1920, "narrow": 380}


def race(page: Page) -> None:
    page.fill("#prompt textarea", PROMPT)
    page.click("#run")
    page.wait_for_selector(".verdict[data-kind]")


def benchmark(page: Page) -> None:
    page.get_by_role("tab", name="Benchmark").click()
    box = page.locator("#bench-tokens input[type=number]")
    box.fill("16")
    box.press("Tab")
    page.click("#bench-run")
    page.wait_for_function("document.querySelector('#bench-status textarea').value.startsWith('Finished')")
    page.wait_for_timeout(2000)  # the plots are drawn after the words


def replay(page: Page) -> None:
    page.get_by_role("tab", name="Replay").click()
    page.click("#replay-open")
    page.wait_for_selector("#replay-stage .verdict[data-kind]")


class Tab(StrEnum):
    RACE = "race"
    BENCHMARK = "benchmark"
    REPLAY = "replay"


SHOW = {Tab.RACE: race, Tab.BENCHMARK: benchmark, Tab.REPLAY: replay}


def main(tab: Annotated[list[Tab] | None, typer.Option(help="Take this tab's (default: every tab's).")] = None) -> None:
    FOLDER.mkdir(exist_ok=True)
    with serving() as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for name, theme in track(list(product(tab or Tab, ("light", "dark"))), "Pictures"):
            context = browser.new_context(viewport={"width": 1920, "height": 1080})
            context.set_default_timeout(180_000)
            page = context.new_page()
            page.goto(f"{address}?__theme={theme}")
            page.wait_for_selector(".hint")
            SHOW[name](page)
            for size, width in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": 1080})
                page.wait_for_timeout(1500)
                page.screenshot(path=FOLDER / f"{name}-{theme}-{size}.png", full_page=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    typer.run(main)
