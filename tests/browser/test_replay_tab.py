"""The Replay tab of the real page in a real browser: recorded races played, stepped, opened from a file; no model."""

import json
import re
from time import monotonic, sleep

import pytest
from looks import CONTRASTS, faults, seen_on_a_phone
from playwright.sync_api import Page, expect
from serving import served
from test_replay import WORDS
from test_trace import made, raw_trace

from specdemo import shipped
from specdemo.config import Settings
from specdemo.measure.recording import Recording, side_by_side
from specdemo.measure.scoreboard import rows
from specdemo.measure.trace import PATHS, read, write
from specdemo.ui import build as build_module
from specdemo.ui import replay_tab
from specdemo.ui.player import Player
from specdemo.ui.replay_tab import REPLAYS, ReplayTab
from specdemo.ui.texts import text

pytestmark = pytest.mark.browser

NAME = "refrain"
PLAY_MS = 240_000  # a recorded race lasts as long as it lasted, a quarter of it at four times its pace
OPEN_MS = 30_000  # a page with its tab, on a slow processor that others use as well
HOSTILE = [
    *WORDS,
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "`${window.hacked=1}`",
]


class NoModel:
    """Stands in for the warm-up: this page has no models at all."""

    words = "no model here"

    def __init__(self, *_: object, **__: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(chromium):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "Warmup", NoModel)
        with served(Settings()) as place:
            yield place


@pytest.fixture
def opened(page: Page, address: str) -> Page:
    return visit(page, address)


def visit(page: Page, address: str, query: str = "") -> Page:
    page.goto(f"{address}{query}")
    page.get_by_role("tab", name=text("replay")).click()
    expect(stage(page).locator(".hint")).to_have_text([text("replay_hint")] * 2)
    page.wait_for_timeout(500)
    expect(stage(page).locator(".hint")).to_have_text([text("replay_hint")] * 2)
    return page


def stage(page: Page):
    return page.locator("#replay-stage")


def tokens(page: Page, path: str):
    return stage(page).locator(f".pane.{path} .token")


def steps(page: Page):
    return stage(page).locator(".pane-body .step")


def speed(page: Page, pace: str) -> None:
    page.locator("#speed").get_by_text(pace, exact=True).click()


def finished(page: Page, timeout: int = PLAY_MS) -> None:
    expect(stage(page).locator(".pane[data-state=finished]")).to_have_count(2, timeout=timeout)


def upload(page: Page, file) -> None:
    page.locator("#open").locator("xpath=..").locator("input[type=file]").first.set_input_files(file)


def paced(file, factor: float):
    """A shipped race written to `file` with every time multiplied by `factor`."""
    write(read(shipped.path(NAME)), file)
    raw = json.loads(file.read_text())
    for _, step in raw["steps"]:
        for key in ("seconds", "draft_s", "verify_s"):
            step[key] *= factor
    file.write_text(json.dumps(raw))
    return file


@pytest.fixture
def short(tmp_path):
    """A shipped race as a file that plays in seconds."""
    return paced(tmp_path / "short.json", 1 / 20)


@pytest.fixture
def lasting(tmp_path):
    """A shipped race as a file that still plays when a slow browser has drawn its first steps."""
    return paced(tmp_path / "lasting.json", 20)


def assert_shown(page: Page, trace) -> None:
    """Texts and figures on the page are those that the file gives."""
    recording = Recording(trace)
    for path, step in trace.steps:
        recording.take(path, step)
    for path in PATHS:
        assert tokens(page, path).all_text_contents() == [shown(piece) for piece in trace.pieces[path]]
    for row in rows(recording.tallies["plain"], recording.tallies["speculative"], trace.models):
        cells = stage(page).locator(".board tbody tr").filter(has=page.get_by_text(row.label, exact=True))
        expect(cells.locator("td:visible")).to_have_text([row.joint] if row.joint else [row.plain, row.speculative])


def shown(piece: str) -> str:
    """A piece as the stage shows it: control characters by their pictures."""
    controls = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}
    return piece.translate(controls | {0x7F: "\u2421"})


# --- playing ---------------------------------------------------------------------------------------------


def test_one_click_on_a_shipped_race_plays_it_to_its_end_with_the_figures_of_its_file(opened, tmp_path):
    trace = read(shipped.path(NAME))
    opened.locator(f"#replay-{NAME}").click()
    expect(tokens(opened, "plain").first).to_be_visible(timeout=PLAY_MS)
    about = stage(opened).locator(".about")
    expect(about).to_contain_text(trace.settings["prompt"])
    expect(about).to_contain_text(trace.machine["processor"])
    assert tokens(opened, "plain").count() < len(trace.pieces["plain"])
    speed(opened, "4×")
    finished(opened)
    assert_shown(opened, trace)
    expect(stage(opened).locator(".verdict[data-kind=identical]")).to_be_visible()
    expect(stage(opened).locator(".summary")).to_contain_text("Speculative decoding was")
    expect(opened.locator("#replay_chart_tokens :is(svg, canvas)").first).to_be_visible()
    with opened.expect_download() as download:
        opened.locator("#replay-save").click()
    download.value.save_as(tmp_path / "kept.json")
    assert read(tmp_path / "kept.json") == trace


def test_both_paths_stream_in_the_order_of_their_own_clocks(opened):
    opened.locator(f"#replay-{NAME}").click()
    expect(stage(opened).locator(".status")).to_have_text(text("replaying"))
    seen = opened.evaluate("""async () => {
      const count = (path) => document.querySelectorAll(`#replay-stage .pane.${path} .token`).length;
      const seen = [];
      while (document.querySelector("#replay-stage .pane[data-state=running]")) {
        seen.push([count("plain"), count("speculative")]);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return seen;
    }""")
    order, running = side_by_side(read(shipped.path(NAME))), {"plain": 0, "speculative": 0}
    allowed = {(0, 0)}
    for _, path, step in order:
        running[path] += len(step.tokens)
        allowed.add(tuple(running.values()))
    assert {tuple(pair) for pair in seen} <= allowed  # never in another order than that of the clocks
    assert len({tuple(pair) for pair in seen}) > 5


def test_pause_holds_the_place_and_play_goes_on_from_it(opened, lasting):
    upload(opened, lasting)
    expect(steps(opened).nth(2)).to_be_visible(timeout=PLAY_MS)
    opened.locator("#pause").click()
    expect(stage(opened).locator(".status")).to_contain_text("Paused after")
    held = steps(opened).count()
    opened.wait_for_timeout(1500)
    assert steps(opened).count() == held
    opened.locator("#play").click()
    expect(stage(opened).locator(".status")).to_have_text(text("replaying"))
    assert steps(opened).count() >= held
    speed(opened, "4×")
    expect(steps(opened).nth(held)).to_be_visible(timeout=PLAY_MS)
    opened.locator("#pause").click()
    expect(stage(opened).locator(".status")).to_contain_text("Paused after")


def test_stepping_shows_the_step_whose_clock_is_due_and_takes_it_back(opened):
    first = shipped.names()[0]  # what Next begins with where nothing was chosen
    order = [(path, step) for _, path, step in side_by_side(read(shipped.path(first))) if step.tokens]
    counts = {"plain": 0, "speculative": 0}
    for path, step in order[:5]:
        opened.locator("#next").click()
        counts[path] += len(step.tokens)
        for side in PATHS:
            expect(tokens(opened, side)).to_have_count(counts[side])
    opened.locator("#back").focus()
    opened.keyboard.press("Enter")
    path, step = order[4]
    expect(tokens(opened, path)).to_have_count(counts[path] - len(step.tokens))
    expect(stage(opened).locator(".status")).to_contain_text("Paused after 4 of")
    assert opened.evaluate("() => document.activeElement.id || document.activeElement.closest('[id]').id") == "back"


def test_another_race_takes_the_stage_at_once(opened, short):
    opened.locator(f"#replay-{NAME}").click()
    expect(steps(opened).nth(1)).to_be_visible(timeout=PLAY_MS)
    opened.locator("#replay-open").click()
    expect(stage(opened).locator(".about")).to_contain_text("lighthouse")
    opened.wait_for_timeout(1500)
    expect(stage(opened).locator(".about")).to_contain_text("lighthouse")
    upload(opened, short)
    finished(opened)
    assert_shown(opened, read(short))


def test_a_page_that_is_closed_ends_its_replay(page, lasting):
    tabs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "Warmup", NoModel)
        patch.setattr(build_module, "ReplayTab", lambda: tabs.append(ReplayTab()) or tabs[0])
        with served(Settings()) as place:
            visit(page, place)
            upload(page, lasting)
            expect(steps(page).first).to_be_visible(timeout=PLAY_MS)
            assert len(tabs[0]._playing) == 1
            page.close()
            deadline = monotonic() + 10
            while tabs[0]._playing and monotonic() < deadline:
                sleep(0.1)
            assert tabs[0]._playing == {}


def test_a_visitor_who_must_wait_sees_the_place_in_the_queue(page, other, lasting):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "Warmup", NoModel)
        patch.setitem(REPLAYS, "concurrency_limit", 1)
        with served(Settings()) as place:
            visit(page, place)
            upload(page, lasting)
            expect(steps(page).first).to_be_visible(timeout=PLAY_MS)
            visit(other, place)
            other.locator("#replay-open").click()
            expect(other.locator("#replay-turn")).to_contain_text("queue: 1/1")  # opening the page took no place in it
            page.locator("#pause").click()
            expect(steps(other).first).to_be_visible(timeout=PLAY_MS)
            other.close()
            page.close()


# --- files from anywhere ------------------------------------------------------------------------------------


def test_bad_files_each_get_one_message_and_the_page_goes_on(opened, short, tmp_path, watch):
    raw = raw_trace()
    bad = {
        "empty.json": ("", "cannot be read as JSON"),
        "foreign.json": ('{"log": {"version": "1.2"}}', "not a trace of this program"),
        "newer.json": (json.dumps(raw | {"version": 2}), "trace version 2"),
        "nan.json": (json.dumps(raw).replace('"margin": 2.0', '"margin": NaN', 1), "nan.json"),
        "deep.json": (json.dumps(raw | {"vocabulary": {"<img src=x>": 5}}), "damaged at vocabulary.<img src=x>"),
        "big.json": (json.dumps(raw).ljust(8_000_001), None),
    }
    for name, (content, message) in bad.items():
        (tmp_path / name).write_text(content)
        upload(opened, tmp_path / name)
        if message is None:
            toast = opened.get_by_text(re.compile("exceed the maximum allowed size"))
            expect(toast).to_be_visible()
        else:
            expect(stage(opened).get_by_role("alert")).to_contain_text(message)
            assert stage(opened).get_by_role("alert").count() == 1
    assert opened.locator("img[src=x]").count() == 0
    upload(opened, short)
    finished(opened)
    assert_shown(opened, read(short))
    watch.errors[:] = [error for error in watch.errors if "413" not in error]


def test_a_hostile_trace_is_shown_literally(opened, tmp_path):
    dialogs: list[str] = []
    opened.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    trace = made()
    for name in PATHS:
        trace.pieces[name] = ["".join(HOSTILE)] * len(trace.pieces[name])
    trace.vocabulary = dict.fromkeys(trace.vocabulary, "".join(HOSTILE))
    for kept in (trace.settings, trace.models, trace.machine):
        kept.update(
            {key: "".join(HOSTILE) for key in ("prompt", "mode", "dtype", "pair", "processor", "threads", "torch")}
        )
    file = tmp_path / "<img src=x onerror=window.hacked=1>${alert(1)}.json"
    write(trace, file)
    upload(opened, file)
    finished(opened, 30_000)
    assert_shown(opened, read(file))
    facts = stage(opened).locator(".about dd").all_text_contents()
    assert len(facts) == 3 and all(shown("".join(HOSTILE)) in fact for fact in facts)
    opened.get_by_label("Show rejected").last.check()
    expect(stage(opened).locator(".node").first).to_have_text(shown("".join(HOSTILE)), use_inner_text=False)
    tokens(opened, "speculative").first.click()
    assert opened.evaluate("() => window.hacked") is None
    assert dialogs == [] and opened.locator("img[src=x]").count() == 0


# --- links ------------------------------------------------------------------------------------------------------


def test_a_link_plays_a_shipped_race_once(page, address, monkeypatch):
    plays = []
    monkeypatch.setattr(replay_tab, "Player", lambda *given: plays.append(given) or Player(*given))
    page.goto(f"{address}?replay=open")
    expect(stage(page).locator(".about")).to_contain_text("lighthouse", timeout=OPEN_MS)
    expect(stage(page).locator(".status")).to_have_text(text("done"), timeout=PLAY_MS)
    page.wait_for_timeout(5000)  # a second play would wait for the end of the first
    expect(stage(page).locator(".status")).to_have_text(text("done"))
    assert tokens(page, "plain").count() == len(read(shipped.path("open")).pieces["plain"])
    assert len(plays) == 1


def test_a_link_to_no_race_says_which_there_are(page, address):
    page.goto(f"{address}?replay=%3Cimg%20src=x%20onerror=window.hacked=1%3E")
    alert = stage(page).get_by_role("alert")
    expect(alert).to_contain_text("<img src=x onerror=window.hacked=1>", timeout=OPEN_MS)
    expect(alert).to_contain_text(", ".join(shipped.names()))
    assert page.evaluate("() => window.hacked") is None


def test_a_link_presets_the_race_tab_and_runs_nothing(page, address):
    page.goto(
        f"{address}?prompt=%3Cb%3E%24%7Balert(1)%7D%20a%26b&mode=ngram&max_new_tokens=32&temperature=9&hue=%3Cb%3E"
    )
    expect(page.locator("#prompt textarea")).to_have_value("<b>${alert(1)} a&b", timeout=OPEN_MS)
    alert = page.locator("#stage").get_by_role("alert")
    expect(alert).to_contain_text("temperature: 9 is outside 0 to 2 here", timeout=OPEN_MS)
    expect(alert).to_contain_text("hue: is no setting here")
    page.get_by_role("button", name=re.compile(f"^{text('settings')}")).click()
    expect(page.get_by_label(f"number input for {text('max_new_tokens')}")).to_have_value("32")
    expect(page.get_by_label(text("mode"))).to_have_value(text("mode_ngram"))
    expect(page.get_by_label(f"number input for {text('temperature')}")).to_have_value("0")
    page.wait_for_timeout(1000)
    assert page.locator("#stage .token").count() == 0
    expect(page.locator("#stage .hint")).to_have_count(2)


# --- looks ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["light", "dark"])
def full(page, address, request, short) -> Page:
    """The tab in one of its themes with a race played to its end and a step's details open."""
    visit(page, address, f"?__theme={request.param}")
    assert page.evaluate("() => document.body.classList.contains('dark')") == (request.param == "dark")
    upload(page, short)
    finished(page)
    tokens(page, "speculative").nth(3).click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    return page


def test_nothing_scrolls_sideways_on_a_phone(full):
    parts = "#play, #pause, #back, #next, #speed, #open, #replay-save, #replay-stage, [id^=replay_chart]"
    assert seen_on_a_phone(full, parts) == 12


def test_axe_finds_nothing_serious_and_the_text_is_readable(full):
    assert faults(full) == []
    ratios = full.evaluate(CONTRASTS, "#replay-stage :is(.about dt, .about dd)")
    assert len(ratios) == 6 and min(ratios) >= 4.5
    assert full.locator("#replay-stage .pane [aria-live]").count() == 0
