"""The stage in a real browser: what it draws, what it never executes, and who can use it."""

import json
import re

import gradio as gr
import pytest
from looks import CONTRASTS, PHONE, faults
from playwright.sync_api import Page, expect
from stage_runs import GO, HOSTILE, OPENING, RUNS, runner

from specdemo.ui.stage import line, stage

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(serve) -> str:
    with gr.Blocks() as app:
        with gr.Row():
            buttons = {name: gr.Button(name, elem_id=name, min_width=60) for name in RUNS}
        with gr.Tabs():
            with gr.Tab("Race"):
                board = stage(OPENING)
            with gr.Tab("Elsewhere"):
                gr.Markdown("Nothing here")
        for name, (frames, pause) in RUNS.items():
            buttons[name].click(runner(frames, pause), None, board, show_progress="hidden")
        gr.Button("hide", elem_id="hide").click(lambda: gr.update(visible=False), None, board)
        gr.Button("show", elem_id="show").click(lambda: gr.update(visible=True), None, board)
    return serve(app)


@pytest.fixture
def opened(page: Page, address: str) -> Page:
    page.goto(address)
    expect(page.locator(".specdemo-stage .hint")).to_have_count(2)
    return page


def run(page: Page, name: str) -> None:
    page.locator(f"#{name}").click()
    expect(page.locator(".pane[data-state=finished]")).to_have_count(2)


def tokens(page: Page, path: str):
    return page.locator(f".pane.{path} .token")


def pictured(text: str) -> str:
    """The text as the stage shows it: control characters by their pictures."""
    controls = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}
    return text.translate(controls | {0x7F: "\u2421"})


# --- the log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*HOSTILE, "\ud83d", "\U0001f642"])
def test_a_line_is_inert_ascii_and_loses_nothing(text):
    made = line({"e": "status", "text": text})
    assert made.isascii() and made.endswith("\n") and made.count("\n") == 1
    assert not re.search(r"[<>&`$]|__i18n__", made)
    assert json.loads(made) == {"e": "status", "text": text}


def test_a_line_stays_json_when_a_number_is_not_finite():
    made = line({"e": "step", "tokens": [{"logprob": float("-inf")}, {"logprob": float("nan")}]})
    assert json.loads(made)["tokens"] == [{"logprob": None}, {"logprob": None}]


def test_the_template_holds_no_placeholder():
    component = stage()
    assert not re.search(r"\$\{|\{\{", component.html_template + component.css_template)


# --- drawing -----------------------------------------------------------------------------------------


def test_tokens_stand_in_their_panes_coloured_by_who_wrote_them(opened):
    run(opened, "race")
    expect(tokens(opened, "plain")).to_have_text(["The", " quick"])
    expect(tokens(opened, "speculative")).to_have_text([" quick", " brown", " fox"])
    classes = [mark.get_attribute("class") for mark in tokens(opened, "speculative").all()]
    assert classes == ["token draft", "token ngram", "token target"]
    look = "node => [getComputedStyle(node).color, getComputedStyle(node).textDecorationLine, " + (
        "getComputedStyle(node).textDecorationStyle]"
    )
    draft, ngram, target = (mark.evaluate(look) for mark in tokens(opened, "speculative").all())
    assert draft[1:] == ["underline", "solid"] and ngram[1:] == ["underline", "dotted"] and target[1] == "none"
    assert len({draft[0], ngram[0], target[0]}) == 3
    assert tokens(opened, "plain").first.evaluate(look)[1] == "none"


def test_a_race_fills_scoreboard_status_verdict_and_summary(opened):
    expect(opened.locator(".board tbody td")).to_have_text(["\u2013"] * 4)
    run(opened, "race")
    expect(opened.locator(".board tbody tr").first.locator("td")).to_have_text(["15.2", "24.1"])
    joint = opened.locator(".board tbody tr").last.locator("td:visible")
    expect(joint).to_have_text(["1.58\u00d7"])
    expect(joint).to_have_attribute("colspan", "2")
    expect(opened.locator(".status")).to_have_text("Racing")
    expect(opened.locator(".verdict")).to_contain_text("Identical: 3 ids are equal")
    expect(opened.locator(".summary[aria-live=polite]")).to_have_text("The speculative path was faster.")
    expect(opened.locator(".pane-state").first).to_have_text("2 tokens \u00b7 length reached")
    expect(opened.locator(".pane-state").last).to_have_text("3 tokens \u00b7 end of text")
    assert opened.locator(".specdemo-stage .pane [aria-live]").count() == 0


def test_an_error_is_an_alert_and_ends_the_run(opened):
    opened.locator("#failed").click()
    expect(opened.get_by_role("alert").filter(has_text="too long")).to_be_visible()
    expect(opened.locator(".pane[data-state=finished]")).to_have_count(2)


def test_a_path_that_breaks_is_an_alert_in_its_pane_while_the_other_goes_on(opened):
    opened.locator("#broken").click()
    alert = opened.locator(".pane.speculative").get_by_role("alert")
    expect(alert).to_have_text("This path broke: out of memory.")
    expect(opened.locator(".pane.speculative .pane-state")).to_have_text("1 tokens · failed")
    expect(opened.locator(".pane.plain[data-state=running]")).to_have_count(1)
    expect(tokens(opened, "plain")).to_have_text(["The", " quick"])
    expect(opened.locator(".pane.plain .pane-state")).to_have_text("2 tokens · length reached")
    expect(alert).to_be_visible()


def test_an_emoji_split_over_tokens_keeps_the_count(opened):
    run(opened, "emoji")
    expect(tokens(opened, "speculative")).to_have_text(["", "", "", "\U0001f642"])


def test_a_second_run_clears_the_first_and_keeps_the_switch(opened):
    run(opened, "race")
    opened.get_by_label("Show rejected").check()
    tokens(opened, "speculative").first.click()
    run(opened, "again")
    expect(opened.locator(".summary")).to_have_text("The second run.")
    expect(tokens(opened, "speculative")).to_have_text(["Again"])
    expect(tokens(opened, "plain")).to_have_count(0)
    expect(opened.locator(".details")).to_be_hidden()
    expect(opened.locator(".board tbody td")).to_have_text(["\u2013"] * 4)
    expect(opened.locator(".verdict")).to_have_text("")
    expect(opened.get_by_label("Show rejected")).to_be_checked()


def test_a_second_start_inside_one_log_clears_too(opened):
    run(opened, "twice")
    expect(opened.locator(".summary")).to_have_text("The second run.")
    expect(tokens(opened, "speculative")).to_have_text(["Again"])
    expect(tokens(opened, "plain")).to_have_count(0)


def test_streaming_appends_and_never_replaces(opened):
    opened.locator("#paced").click()
    expect(tokens(opened, "plain").first).to_be_visible()
    opened.evaluate("""() => {
      window.seen = { removed: 0, batches: 0, early: [...document.querySelectorAll(".token")] };
      new MutationObserver((records) => {
        window.seen.batches += 1;
        for (const record of records) window.seen.removed += record.removedNodes.length;
      }).observe(document.querySelector(".main"), { subtree: true, childList: true });
    }""")
    expect(opened.locator(".pane[data-state=finished]")).to_have_count(2)
    expect(tokens(opened, "speculative")).to_have_count(80)
    # A text node that is overwritten counts as removed: only the two token counters may do that.
    seen = opened.evaluate("""() => ({ ...window.seen, early: window.seen.early.length,
      kept: window.seen.early.filter((node) => node.isConnected).length })""")
    assert 0 < seen["early"] == seen["kept"]
    assert seen["batches"] >= 5
    assert seen["removed"] <= 2 * seen["batches"]
    texts = tokens(opened, "plain").all_text_contents()
    assert texts == [f" plain word {i}" for i in range(40)]


BELOW = "node => node.scrollHeight - node.clientHeight - node.scrollTop"  # px of a pane's text under its window


def held(page: Page, width: int):
    """The speculative pane, at its end, of a run that goes on when the test says so."""
    page.set_viewport_size({"width": width, "height": 900})
    page.locator("#held").click()
    expect(tokens(page, "speculative")).to_have_count(60)
    body = page.locator(".pane.speculative .pane-body")
    assert body.evaluate("node => node.scrollTop") > 100
    assert body.evaluate(BELOW) < 2
    return body


def go_on(page: Page) -> None:
    GO.set()
    expect(page.locator(".pane[data-state=finished]")).to_have_count(2)
    expect(tokens(page, "speculative")).to_have_count(80)


def test_a_pane_follows_the_newest_token_unless_the_reader_scrolled_up(opened):
    body = held(opened, 400)
    body.evaluate("node => { node.scrollTop = 0; }")
    go_on(opened)
    assert body.evaluate("node => node.scrollTop") == 0
    body.evaluate("node => { node.scrollTop = node.scrollHeight; }")
    assert body.evaluate(BELOW) < 2


def test_a_pane_follows_the_newest_token_in_a_window_made_narrower(opened):
    body = held(opened, 480)
    opened.set_viewport_size({"width": 340, "height": 900})
    go_on(opened)
    assert body.evaluate(BELOW) < 2


@pytest.mark.parametrize("scrolled_up", [False, True])
def test_a_run_that_ends_behind_another_tab_stands_where_the_reader_left_it(opened, scrolled_up):
    body = held(opened, 400)
    if scrolled_up:
        body.evaluate("node => { node.scrollTop = 50; }")
    opened.get_by_role("tab", name="Elsewhere").click()
    expect(opened.get_by_text("Nothing here")).to_be_visible()
    go_on(opened)
    opened.get_by_role("tab", name="Race").click()
    expect(body).to_be_visible()
    if scrolled_up:
        opened.wait_for_timeout(300)
        assert body.evaluate("node => node.scrollTop") == 50
    else:
        opened.wait_for_function(f"node => ({BELOW})(node) < 2", arg=body.element_handle())


def test_switching_tabs_in_mid_run_and_afterwards_loses_nothing(opened):
    opened.get_by_label("Show rejected").check()
    opened.locator("#paced").click()
    expect(tokens(opened, "plain").first).to_be_visible()
    for pause in (600, 100):  # the second time the run is over, and nothing new arrives
        opened.get_by_role("tab", name="Elsewhere").click()
        expect(opened.get_by_text("Nothing here")).to_be_visible()
        opened.wait_for_timeout(pause)
        opened.get_by_role("tab", name="Race").click()
        expect(opened.locator(".pane[data-state=finished]")).to_have_count(2)
        expect(tokens(opened, "plain")).to_have_count(40)
        expect(tokens(opened, "speculative")).to_have_count(80)
        expect(opened.get_by_label("Show rejected")).to_be_checked()
        body = opened.locator(".pane.speculative .pane-body")
        opened.wait_for_function(f"node => ({BELOW})(node) < 2", arg=body.element_handle())


def test_a_stage_that_is_mounted_again_draws_its_log_anew(opened):
    run(opened, "race")
    opened.get_by_label("Show rejected").check()
    opened.evaluate("() => { document.querySelector('.specdemo-stage').dataset.mount = 'first'; }")
    opened.locator("#hide").click()
    expect(opened.locator(".specdemo-stage")).to_have_count(0)
    opened.locator("#show").click()
    expect(opened.locator(".specdemo-stage:not([data-mount])")).to_have_count(1)
    expect(tokens(opened, "speculative")).to_have_text([" quick", " brown", " fox"])
    expect(opened.locator(".node:visible")).to_have_count(2)
    expect(opened.get_by_label("Show rejected")).to_be_checked()
    run(opened, "again")
    expect(tokens(opened, "speculative")).to_have_text(["Again"])


# --- hostile text --------------------------------------------------------------------------------------


@pytest.fixture
def alarmed(opened):
    """The opened page, and proof afterwards that no text of the stage was executed or parsed."""
    dialogs: list[str] = []
    opened.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    yield opened
    assert opened.evaluate("() => window.hacked") is None
    assert dialogs == []
    assert opened.locator(".specdemo-stage :is(img, script, iframe, b, a, style)").count() == 0


def test_hostile_text_is_shown_literally_everywhere(alarmed):
    texts = "nodes => nodes.map((node) => node.textContent)"
    for at, text in enumerate(HOSTILE):
        run(alarmed, f"hostile{at}")
        expect(alarmed.locator(".summary")).to_have_text(pictured(text), use_inner_text=False)
        places = ".pane-title, .token, .node, .status, .summary, .board td, .board tbody th, .sample"
        places += ", .verdict span:last-child, .board thead th:not(:first-child)"
        found = alarmed.locator(places).evaluate_all(texts)
        assert len(found) == 16 and set(found) == {pictured(text)}, text
        assert alarmed.locator(".pane-body").first.get_attribute("aria-label") == pictured(text)
        tokens(alarmed, "speculative").first.dispatch_event("click")
        inert = pictured(text).replace("\n", "\u21b5").replace("trailing ", "trailing\u2423")
        assert alarmed.locator(".token-text").evaluate_all(texts) == [inert]
        assert inert in alarmed.locator(".details-title").text_content()
        assert alarmed.locator(".facts dd").first.text_content() == pictured(text)
        alarmed.locator(".term").dispatch_event("click")
        assert alarmed.locator(".tip").text_content() == pictured(text)


# --- the reader's hands ----------------------------------------------------------------------------------


def test_the_switch_shows_what_was_drafted_in_vain_where_it_was_proposed(opened):
    run(opened, "race")
    expect(opened.locator(".node:visible")).to_have_count(0)
    opened.get_by_label("Show rejected").check()
    expect(opened.locator(".node:visible")).to_have_text([" dog", " ran"])
    order = opened.locator(".speculative .step > *").all_text_contents()
    assert order == [" quick", " brown", " dog", " ran", " fox"]
    lines = "nodes => nodes.map((node) => getComputedStyle(node).textDecorationLine)"
    assert opened.locator(".node").evaluate_all(lines) == ["line-through"] * 2
    opened.get_by_label("Show rejected").uncheck()
    expect(opened.locator(".node:visible")).to_have_count(0)


def test_a_click_opens_the_step_with_its_numbers(opened):
    run(opened, "race")
    tokens(opened, "speculative").nth(1).click()
    details = opened.locator(".details")
    expect(details.locator(".details-title")).to_contain_text("Step 7")
    expect(details.locator(".facts dd")).to_have_text(
        ["n-gram", "\u22120.125", "7.500 s", "120.0 ms", "20.0 ms", "90.0 ms", "10.0 ms"]
    )
    rows = [row.locator("td").all_text_contents() for row in details.locator("tbody tr").all()]
    assert rows == [
        ["\u2423quick", "draft model", "0.750", "0.625", "accepted"],
        ["\u2423brown", "n-gram", "0.250", "\u2013", "accepted"],
        ["\u2423dog", "draft model", "0.063", "0.500", "rejected"],
        ["\u2423ran", "draft model", "\u2013", "0.500", "untested"],
    ]
    tokens(opened, "plain").first.click()
    expect(details).to_contain_text("Nothing was drafted")
    expect(opened.locator(".specdemo-stage .selected")).to_have_count(1)
    details.get_by_role("button", name="Close").click()
    expect(details).to_be_hidden()


def test_the_keyboard_walks_tokens_opens_and_closes(opened):
    run(opened, "race")
    opened.get_by_role("region", name="Speculative").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.locator(".specdemo-stage .selected")).to_have_text(" quick")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("ArrowLeft")
    expect(opened.locator(".specdemo-stage .selected")).to_have_text(" brown")
    expect(opened.locator(".details")).to_be_hidden()
    opened.keyboard.press("Enter")
    expect(opened.locator(".details-title")).to_contain_text("brown")
    opened.keyboard.press("ArrowRight")
    expect(opened.locator(".details-title")).to_contain_text("fox")
    opened.keyboard.press("Escape")
    expect(opened.locator(".details")).to_be_hidden()
    expect(opened.get_by_role("region", name="Speculative")).to_be_focused()


def test_definitions_show_on_focus_and_on_hover_and_leave_on_escape(opened):
    tip = opened.get_by_role("tooltip")
    opened.get_by_role("button", name="speed-up").focus()
    expect(tip).to_have_text("Plain latency over speculative latency.")
    opened.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    opened.get_by_role("button", name="decode tokens/s").hover()
    expect(tip).to_have_text("Committed tokens per own-clock second.")
    opened.mouse.move(0, 0)
    expect(tip).to_be_hidden()


# --- looks ---------------------------------------------------------------------------------------------


def test_nothing_scrolls_sideways_on_a_phone(opened):
    opened.set_viewport_size({"width": PHONE, "height": 800})
    run(opened, "race")
    opened.get_by_label("Show rejected").check()
    tokens(opened, "speculative").first.click()
    opened.locator(".term").first.focus()
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= PHONE
    # What Gradio's own containers would merely cut off is caught here.
    beyond = f"nodes => nodes.filter((node) => node.getBoundingClientRect().right > {PHONE}).length"
    assert opened.locator(".specdemo-stage :is(div, p, table, td, th, section)").evaluate_all(beyond) == 0
    plain, other = (box.bounding_box() for box in opened.locator(".pane").all())
    assert other["y"] >= plain["y"] + plain["height"] and other["x"] == plain["x"]
    opened.set_viewport_size({"width": 820, "height": 800})
    plain, other = (box.bounding_box() for box in opened.locator(".pane").all())
    assert other["y"] == plain["y"] and other["x"] > plain["x"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_and_axe_finds_nothing_serious(page, address, theme):
    page.goto(f"{address}?__theme={theme}")
    run(page, "race")
    page.get_by_label("Show rejected").check()
    assert page.evaluate("() => document.body.classList.contains('dark')") == (theme == "dark")
    tokens(page, "speculative").nth(2).click()
    page.mouse.move(0, 0)
    marks = ".token, .node, .sample, .pane-state, .pane-title, .status, .board th, .board td, .verdict span"
    ratios = page.evaluate(CONTRASTS, f"{marks}, .summary, .details dt, .details dd, .details th, .details td")
    assert len(ratios) > 40 and min(ratios) >= 4.5
    assert faults(page, ".specdemo-stage") == []


def test_the_net_around_a_page_catches_requests_to_elsewhere(opened, watch):
    run(opened, "race")
    assert watch.abroad == []
    opened.evaluate("() => fetch('http://example.invalid/').catch(() => null)")
    assert watch.abroad == ["http://example.invalid/"]
    assert watch.errors
    watch.abroad.clear()
    watch.errors.clear()
