"""The Benchmark tab of the real page in a real browser: a visitor's own prompts, measured, stopped, saved."""

import csv
import json
import re

import pytest
from looks import faults, seen_on_a_phone
from playwright.sync_api import Page, expect
from serving import served

from specdemo.config import Defaults, Limits, Settings
from specdemo.ui.texts import text

pytestmark = [pytest.mark.browser, pytest.mark.model]

TOKENS, ANSWERS = 16, 12
RUN_MS = 120_000  # a dozen short answers, on a slow processor that others use as well
HOSTILE = "<img src=x onerror=window.hacked=1>|${alert(1)}{{x}}</script>"


@pytest.fixture(scope="module")
def address(chromium):
    limits = Limits(max_bench_answers=ANSWERS)
    with served(Settings(defaults=Defaults(dtype="fp32", max_new_tokens=TOKENS), limits=limits)) as place:
        yield place


@pytest.fixture
def opened(page: Page, address: str) -> Page:
    page.goto(address)
    page.get_by_role("tab", name=text("benchmark")).click()
    box = page.locator("#bench-tokens input[type=number]")
    box.fill(str(TOKENS))
    box.press("Tab")
    return page


def status(page: Page):
    return page.locator("#bench-status textarea")


def upload(page: Page, path, content: str) -> None:
    path.write_text(content)
    for remove in page.locator("#bench-file").get_by_role("button", name=re.compile("clear|remove", re.I)).all():
        remove.click()
    page.locator("#bench-file input[type=file]").set_input_files(path)
    expect(page.locator("#bench-set").get_by_label(text("bench_set_file"))).to_be_checked()


def finished(page: Page) -> None:
    expect(status(page)).to_have_value(text("bench_done").format(total=6), timeout=RUN_MS)


def test_a_visitors_prompts_are_measured_shown_as_they_are_and_saved(opened, tmp_path):
    lines = [{"prompt": "Name two colours.", "id": HOSTILE, "kind": HOSTILE}, {"prompt": "Count to five."}]
    upload(opened, tmp_path / "p.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + "broken\n")
    opened.locator("#bench-run").click()
    expect(status(opened)).to_have_value(
        f"{text('bench_done').format(total=6)} {text('bench_left_out').split('{')[0]}"
        "line 3: Expecting value: line 1 column 1 (char 0)",
        timeout=RUN_MS,
    )
    expect(opened.locator("#bench-advice")).to_contain_text(re.compile("fp32: .* A step costs .* plain ones"))
    averages = opened.locator("#bench-averages")
    for mode in ("plain (fp32)", "tree, 16 (fp32)", "ngram, 16 (fp32)"):
        expect(averages.get_by_role("gridcell", name=mode, exact=True).first).to_be_visible()
    for key, marks in (("speed_up", ".mark-symbol path"), ("time", ".mark-rect path")):
        assert opened.locator(f"#bench-plot-{key} {marks}").count() >= 3, key
    opened.get_by_role("button", name=text("bench_rows")).click()
    expect(opened.locator("#bench-rows").get_by_role("gridcell", name=HOSTILE, exact=True).first).to_be_visible()
    assert opened.evaluate("window.hacked") is None
    saved = {}
    for name in ("csv", "json", "markdown"):
        with opened.expect_download() as download:
            opened.locator(f"#bench-{name}").click()
        saved[name] = download.value.path().read_text()
    found = json.loads(saved["json"])
    assert [row["prompt"] for row in found["rows"]] == [HOSTILE] * 3 + ["line 2"] * 3
    assert {row["lossless"] for row in found["rows"]} == {"identical"}
    assert len(list(csv.DictReader(saved["csv"].splitlines()))) == 6
    assert "Definitions" in saved["markdown"] and "<img" not in saved["markdown"].replace("\\<img", "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", "", "bench_no_prompts"),
        ("p.jsonl", "nonsense\n", "bench_no_prompts"),
        ("p.txt", "one\n" * ANSWERS, "bench_too_many"),
    ],
)
def test_a_file_that_cannot_be_measured_is_answered_in_words_and_the_page_goes_on(
    opened, tmp_path, name, content, message
):
    upload(opened, tmp_path / name, content)
    opened.locator("#bench-run").click()
    words = text(message).split("{")[0]
    opened.wait_for_function(
        "words => document.querySelector('#bench-status textarea').value.startsWith(words)", arg=words, timeout=30_000
    )
    upload(opened, tmp_path / "good.txt", "Name two colours.\nCount to five.\n")
    opened.locator("#bench-run").click()
    finished(opened)


def test_stop_keeps_what_is_done(opened, tmp_path):
    upload(opened, tmp_path / "p.txt", "Name two colours.\nCount to five.\nName a fruit.\n")
    opened.locator("#bench-run").click()
    opened.wait_for_function(
        "() => /^[1-9]/.test(document.querySelector('#bench-status textarea').value)", timeout=RUN_MS
    )
    opened.locator("#bench-stop").click()
    opened.wait_for_function(
        "words => document.querySelector('#bench-status textarea').value.startsWith(words)",
        arg=text("bench_stopped").split("{")[0],
        timeout=30_000,
    )
    plain = opened.locator("#bench-averages").get_by_role("gridcell", name="plain (fp32)", exact=True)
    expect(plain.first).to_be_visible()
    expect(opened.locator("#bench-csv")).to_be_enabled()


SEEN = "#bench-run, #bench-file, #bench-status, #bench-advice, #bench-averages, [id^=bench-plot]"


def test_the_tab_is_for_phones_and_screen_readers_too_before_and_after_a_run(opened, tmp_path):
    assert faults(opened) == []
    upload(opened, tmp_path / "p.txt", "Name two colours.\nCount to five.\n")
    opened.locator("#bench-run").click()
    finished(opened)
    expect(opened.locator("#bench-csv")).to_be_enabled()
    opened.wait_for_timeout(500)  # until the buttons have faded from disabled to enabled
    assert faults(opened) == []
    assert seen_on_a_phone(opened, SEEN) == 8
