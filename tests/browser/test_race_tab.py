"""The Race tab of the real page in a real browser: a race from the prompt to the saved file, and what may go wrong."""

import re

import pytest
from looks import faults, seen_on_a_phone
from playwright.sync_api import Page, expect
from serving import served

from specdemo.config import Defaults, Settings
from specdemo.measure.trace import read
from specdemo.ui.texts import EXAMPLES, text

pytestmark = [pytest.mark.browser, pytest.mark.model]

TOKENS = 16
RACE_MS = 60_000  # a short race with its prefill, on a slow processor that others use as well
PROMPT = "Name the days of the week."
HOSTILE = "<img src=x onerror=window.hacked=1>${alert(1)}{{x}} \U0001f469\u200d\U0001f680 "
HOSTILE += "\u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c"


@pytest.fixture(scope="module")
def address(chromium):
    with served(Settings(defaults=Defaults(dtype="fp32", max_new_tokens=TOKENS))) as place:
        yield place


@pytest.fixture(scope="module")
def long_address(chromium):
    """The same page with races that nobody waits for the end of."""
    with served(Settings(defaults=Defaults(dtype="fp32", max_new_tokens=512))) as place:
        yield place


@pytest.fixture
def opened(page: Page, address: str) -> Page:
    return visit(page, address)


@pytest.fixture
def long(page: Page, long_address: str) -> Page:
    return visit(page, long_address)


def visit(page: Page, address: str) -> Page:
    page.goto(address)
    expect(page.locator(".specdemo-stage .hint")).to_have_count(2)
    return page


def prompt(page: Page):
    return page.locator("#prompt textarea")


def begin(page: Page, words: str) -> None:
    """Ask for a race and wait until the page answers: what an earlier one left is then gone."""
    page.evaluate("() => document.querySelectorAll('.board tbody tr').forEach((row) => row.dataset.old = 'yes')")
    prompt(page).fill(words)
    page.locator("#run").click()
    expect(page.locator(".board tbody tr[data-old]")).to_have_count(0, timeout=10_000)


def tokens(page: Page, path: str):
    return page.locator(f".pane.{path} .token")


def under_way(page: Page) -> None:
    for path in ("plain", "speculative"):
        expect(tokens(page, path).first).to_be_visible(timeout=RACE_MS)


def finished(page: Page) -> None:
    expect(page.locator(".pane[data-state=finished]")).to_have_count(2, timeout=RACE_MS)


def row(page: Page, label: str):
    """The filled cells of a figure."""
    return page.locator(".board tbody tr").filter(has=page.get_by_text(label, exact=True)).locator("td:visible")


def open_settings(page: Page) -> None:
    page.get_by_role("button", name=re.compile(f"^{text('settings')}")).click()
    expect(page.get_by_label(text("seed"))).to_be_visible()


def shorten(page: Page) -> None:
    """Set the next race of this page to few tokens."""
    open_settings(page)
    box = page.get_by_label(f"number input for {text('max_new_tokens')}")
    for _ in range(10):  # a slider that was just unfolded may put its first value back once more
        box.fill("16")
        page.keyboard.press("Tab")
        page.wait_for_timeout(500)
        if box.input_value() == "16":
            return
    raise AssertionError("the number of tokens does not stay as it was set")


# --- a race ----------------------------------------------------------------------------------------------


def test_the_first_click_of_a_visitor_already_shows_a_race(opened):
    expect(prompt(opened)).to_have_value(EXAMPLES[0])
    opened.locator("#run").click()
    under_way(opened)
    finished(opened)
    expect(opened.locator(".verdict[data-kind=identical]")).to_be_visible()


def test_a_race_from_the_prompt_to_the_saved_file(opened, tmp_path):
    expect(opened.locator("#save")).to_be_disabled()
    begin(opened, PROMPT)
    finished(opened)
    expect(tokens(opened, "plain")).to_have_count(TOKENS)
    expect(tokens(opened, "speculative")).to_have_count(TOKENS)
    answers = ["".join(tokens(opened, path).all_text_contents()) for path in ("plain", "speculative")]
    assert answers[0] == answers[1] != ""
    expect(row(opened, "Speed-up")).to_have_text([re.compile(r"^\d+\.\d\d×$")])
    expect(row(opened, "Tokens")).to_have_text([str(TOKENS)] * 2)
    expect(opened.locator(".verdict[data-kind=identical]")).to_contain_text("Identical")
    expect(opened.locator(".summary")).to_contain_text("Speculative decoding was")
    expect(opened.locator("#save")).to_be_enabled()
    with opened.expect_download() as download:
        opened.locator("#save").click()
    download.value.save_as(tmp_path / "race.json")
    trace = read(tmp_path / "race.json")
    assert {name: tally.tokens for name, tally in trace.tallies().items()} == {"plain": TOKENS, "speculative": TOKENS}
    assert ["".join(trace.pieces[path]) for path in ("plain", "speculative")] == answers
    assert trace.settings["prompt"] == PROMPT


def test_charts_are_updated_in_place_while_they_stream(long):
    begin(long, PROMPT)
    under_way(long)
    # An idle chart spans no time; the axis grows with the first rows that a race brings.
    expect(long.locator("#chart_tokens :is(svg, canvas)").first).to_be_visible()
    long.wait_for_timeout(2500)
    long.evaluate("""() => {
      window.charts = { lost: [], changes: 0 };
      const drawn = "svg, canvas";
      new MutationObserver((records) => {
        for (const record of records) {
          window.charts.changes += 1;
          for (const node of record.removedNodes) {
            if (node.matches?.(drawn) || node.querySelector?.(drawn)) window.charts.lost.push(node.nodeName);
          }
        }
      }).observe(document.querySelector("#chart_tokens"), { subtree: true, childList: true, attributes: true });
      window.first = document.querySelector("#chart_tokens :is(svg, canvas)");
    }""")
    long.wait_for_timeout(4000)
    long.locator("#stop").click()
    finished(long)
    long.wait_for_timeout(1000)
    assert long.evaluate("() => window.charts.changes") > 0, "the chart did not move"
    assert long.evaluate("() => window.charts.lost") == []
    assert long.evaluate("() => window.first.isConnected")


def test_a_race_of_hostile_text_runs_and_none_of_it_is_executed(opened):
    dialogs: list[str] = []
    opened.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    begin(opened, HOSTILE)
    finished(opened)
    expect(opened.locator(".verdict[data-kind=identical]")).to_be_visible()
    assert prompt(opened).input_value() == HOSTILE
    assert opened.evaluate("() => window.hacked") is None
    assert dialogs == []
    assert opened.locator("img[src=x]").count() == 0


def test_examples_fill_the_prompt(opened):
    for words in (EXAMPLES[1], EXAMPLES[0]):
        opened.get_by_role("button", name=words.strip()).click()
        expect(prompt(opened)).to_have_value(words)


# --- a race that goes otherwise ----------------------------------------------------------------------------


def test_an_empty_prompt_is_an_alert_and_the_page_goes_on(opened):
    for words in ("", " \n"):
        begin(opened, words)
        expect(opened.get_by_role("alert").filter(has_text="prompt: is empty")).to_be_visible()
        finished(opened)
    begin(opened, PROMPT)
    finished(opened)
    expect(opened.locator(".verdict[data-kind=identical]")).to_be_visible()


def test_stop_ends_a_race_and_the_next_one_runs(long):
    begin(long, PROMPT)
    under_way(long)
    long.locator("#stop").click()
    expect(long.locator(".pane[data-state=finished]")).to_have_count(2, timeout=5000)
    for state in long.locator(".pane-state").all():
        expect(state).to_contain_text("stopped")
    expect(long.locator(".summary")).to_contain_text("Stopped.")
    shorten(long)
    begin(long, PROMPT)
    finished(long)
    expect(tokens(long, "plain")).to_have_count(16)
    expect(long.locator(".verdict[data-kind=identical]")).to_be_visible()


def test_a_page_that_is_closed_frees_the_device(long, other, long_address):
    visit(other, long_address)
    begin(long, PROMPT)
    under_way(long)
    long.close()
    begin(other, PROMPT)
    expect(tokens(other, "plain").first).to_be_visible(timeout=10_000)
    other.locator("#stop").click()
    finished(other)


@pytest.fixture
def waiting(long, other, long_address) -> Page:
    """A second visitor who has asked for a race while one is under way, and was told to wait."""
    visit(other, long_address)
    begin(long, PROMPT)
    under_way(long)
    prompt(other).fill(PROMPT)
    other.locator("#run").click()
    expect(other.get_by_text(re.compile("wait|queue", re.I)).first).to_be_visible()
    return other


def test_a_second_visitor_is_told_to_wait_and_then_served(long, waiting):
    assert tokens(waiting, "plain").count() == 0
    long.locator("#stop").click()
    finished(long)
    expect(tokens(waiting, "plain").first).to_be_visible(timeout=10_000)
    waiting.locator("#stop").click()
    finished(waiting)


def test_whoever_waits_for_a_benchmark_or_a_preflight_is_told_so(long, other, long_address):
    visit(other, long_address)
    begin(long, PROMPT)
    under_way(long)
    other.get_by_role("button", name=text("fit")).click()
    other.locator("#look").click()
    expect(other.locator("#fit-turn")).to_contain_text(re.compile("wait|queue", re.I))
    other.get_by_role("tab", name=text("benchmark")).click()
    other.locator("#bench-run").click()
    expect(other.locator("#bench-turn")).to_contain_text(re.compile("wait|queue", re.I))
    other.locator("#bench-stop").click()
    long.locator("#stop").click()
    finished(long)
    expect(other.locator("#bench-status textarea")).to_have_value(text("bench_idle"))


def test_a_waiting_visitor_who_stops_leaves_the_queue(long, waiting):
    waiting.locator("#stop").click()
    waiting.wait_for_timeout(1000)
    long.locator("#stop").click()
    finished(long)
    waiting.wait_for_timeout(3000)
    begun = tokens(waiting, "plain").count()
    waiting.locator("#stop").click()
    assert begun == 0


# --- looks -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["light", "dark"])
def full(page, address, request) -> Page:
    """The page in one of its themes with everything on it: a race that was run, the settings and the preflight open."""
    visit(page, f"{address}?__theme={request.param}")
    assert page.evaluate("() => document.body.classList.contains('dark')") == (request.param == "dark")
    begin(page, PROMPT)
    under_way(page)
    page.locator("#stop").click()
    finished(page)
    open_settings(page)
    page.get_by_role("button", name=text("fit")).click()
    page.locator("#look").click()
    expect(page.locator("#fit")).to_be_visible(timeout=RACE_MS)
    page.wait_for_timeout(500)
    return page


def test_nothing_scrolls_sideways_on_a_phone(full):
    parts = "#prompt, #run, #stop, #save, #fit, #stage, #chart_tokens, #chart_rate, #chart_latency, #chart_memory"
    assert seen_on_a_phone(full, parts) == 10


def test_axe_finds_nothing_serious(full):
    assert faults(full) == []
