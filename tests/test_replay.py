"""A replay tells what the race told, without a model, and whatever a file holds."""

import json
import re
import subprocess
import sys
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import gradio as gr
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_metrics import FIRST, PREFILL, SECOND
from test_trace import made, raw_trace
from tiny import model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specdemo import run as run_module
from specdemo import shipped
from specdemo.config import Defaults, Settings
from specdemo.measure.recording import Recording, side_by_side
from specdemo.measure.trace import PATHS, Trace, TraceError, read, write
from specdemo.models.load import load
from specdemo.models.pairs import Pair
from specdemo.request import RaceRequest
from specdemo.run import Run
from specdemo.ui import events, links, player, replay_tab
from specdemo.ui.charts import Curves
from specdemo.ui.player import Player, near
from specdemo.ui.race_tab import RaceTab
from specdemo.ui.texts import EN, text

ROOT = Path(__file__).parents[1]
WORDS = ["<b>", "${alert(1)}", "{{x}}", "</script>", "a", "\x1b[31m", "__i18n__", "\u202e", "\n", "`", "&lt;"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A tiny pair whose vocabulary is hostile."""
    folder = tmp_path_factory.mktemp("tiny")
    words = {word: id for id, word in enumerate(WORDS + [f"w{i}" for i in range(32 - len(WORDS))])}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "a"))).save_pretrained(folder)
    model().save_pretrained(folder)
    model(seed=1).save_pretrained(folder / "draft")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "a"))).save_pretrained(folder / "draft")
    return load(Pair("tiny", "tiny", str(folder), draft=str(folder / "draft")), "fp32")


def told_live(run, stop_after=None):
    """The events of a race as it is run, by path, and its chart rows and last words."""
    curves, told = Curves(run.trace), []
    for name, step in run:
        curves.add(name, step, run.tallies[name])
        told += events.taken(run, name, step)
        if len(run.trace.steps) == stop_after:
            run._cancelled.set()
    return told, curves.frames(), events.closing(run)


requests = st.builds(
    RaceRequest,
    prompt=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(str.strip),
    mode=st.sampled_from(["ngram", "chain"]),
    temperature=st.sampled_from([0, 1.0]),
    top_p=st.sampled_from([0.9, 1.0]),
    seed=st.integers(0, 2**40),
    max_new_tokens=st.integers(1, 24),
    draft_length=st.integers(1, 6),
    chat_template=st.just(False),
)


def test_passes_made_again_are_told_and_survive_a_trace(loaded, tmp_path, monkeypatch):
    monkeypatch.setitem(run_module.NEAR_TIE, "fp32", 1e9)
    asked = RaceRequest(
        prompt="w1 w2 w1 w2", mode="chain", dtype="fp32", exact=True, max_new_tokens=12, chat_template=False
    )
    run = Run(asked, loaded, Event())
    *_, last = told_live(run)[2]
    again = run.tallies["speculative"].rechecked
    assert again > 0 and f"Passes made again for near-ties: {again}." in last["text"]
    write(run.trace, tmp_path / "race.json")
    recording = Recording(read(tmp_path / "race.json"))
    for name, step in recording.trace.steps:
        recording.take(name, step)
    assert recording.tallies == run.tallies
    player = Player(recording.trace, len(recording.trace.steps) - 1)
    seen, every = map(int, re.findall(r"[0-9]+", player.standing()[-1]["text"]))
    assert 0 < seen < every


def test_a_replay_says_what_the_race_was_run_with():
    trace = made()
    trace.settings |= {"quantization": "nf4", "quantize": "both", "exact": True, "repetition_penalty": 1.2}
    told = next(fact["value"] for fact in events.restart(trace)["about"] if fact["name"] == text("recorded_with"))
    for word in ("nf4 (target and draft)", text("exact"), f"{text('repetition_penalty')} 1.2"):
        assert word in told
    assert "nf4" not in str(events.restart(made())["about"])


@given(request=requests, stop_after=st.none() | st.integers(1, 12))
@settings(max_examples=25)
def test_a_trace_read_back_tells_the_same_events_rows_and_figures_as_the_race(
    loaded, tmp_path_factory, request, stop_after
):
    file = tmp_path_factory.mktemp("trace") / "race.json"
    run = Run(request, loaded, Event())
    live, rows, last = told_live(run, stop_after)
    write(run.trace, file)
    for side in PATHS:  # each token its own piece
        shown = [token["text"] for event in live if event["side"] == side for token in event["tokens"]]
        assert shown == run.trace.pieces[side]
    sampled = request.temperature > 0 and {event["side"] for event in live if event["tokens"]} == set(PATHS)
    assert ("same distribution" in [event.get("kind") for event in last]) == sampled
    recording = Recording(read(file))
    curves, again = Curves(recording.trace), []
    for name, step in recording.trace.steps:
        recording.take(name, step)
        curves.add(name, step, recording.tallies[name])
        again += events.taken(recording, name, step)
    assert again == live and events.closing(recording) == last
    assert [frame.to_dict() for frame in curves.frames()] == [frame.to_dict() for frame in rows]
    assert recording.tallies == run.tallies == recording.trace.tallies() | recording.tallies

    replay = Player(read(file), len(run.trace.steps))
    played = [event for event in replay.standing() if event["e"] == "step"]
    for side in PATHS:
        assert [event for event in played if event["side"] == side] == [e for e in live if e["side"] == side]
    assert replay.standing()[-len(last) :] == last
    for chart, ours in zip(("tokens", "rate", "latency"), replay.curves.frames(), strict=False):
        for series in set(ours["series"]):
            theirs = rows[("tokens", "rate", "latency").index(chart)]
            points = [frame[frame["series"] == series][["x", "y"]].values.tolist() for frame in (ours, theirs)]
            assert points[0] == points[1]


# --- order and pace ----------------------------------------------------------------------------------------


def timed_trace(plain, speculative):
    taken = [("plain", Step_of(seconds)) for seconds in plain]
    return made(taken + [("speculative", Step_of(seconds)) for seconds in speculative])


def Step_of(seconds):
    from dataclasses import replace

    return replace(FIRST, seconds=seconds, draft_s=0.0, verify_s=0.0)


durations = st.lists(st.floats(0.001, 3), max_size=12)


@given(durations, durations)
def test_both_clocks_run_side_by_side(plain, speculative):
    trace = timed_trace(plain, speculative)
    order = side_by_side(trace)
    assert [end for end, _, _ in order] == sorted(end for end, _, _ in order)
    for path, seconds in (("plain", plain), ("speculative", speculative)):
        assert [step.seconds for _, name, step in order if name == path] == seconds
        ends = [end for end, name, _ in order if name == path]
        assert ends == pytest.approx([sum(seconds[: i + 1]) for i in range(len(seconds))])


@given(durations, durations, st.sampled_from([1.0, 2.0, 4.0]))
def test_a_step_appears_in_the_first_frame_after_its_own_clock_divided_by_the_speed(plain, speculative, speed):
    now = [0.0]

    def tick():
        now[0] += 0.1
        return now[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(player, "monotonic", tick)
        patch.setattr(player, "FRAME_S", 0)
        replay = Player(timed_trace(plain, speculative), speed=speed)
        frames, seen = replay.frames(), 0
        next(frames)
        for news in frames:
            steps = [event for event in news if event["e"] == "step"]
            seen += len(steps)
            clock = (now[0] - 0.1) * speed  # the first look began the clock
            for event in steps:
                assert clock - 0.1 * speed - 1e-6 <= event["at"] <= clock + 1e-6
    assert seen == len(plain) + len(speculative)
    assert replay.ended and news[-1]["e"] == "end"


def test_playing_on_waits_only_for_what_is_left_of_a_step(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(player, "monotonic", lambda: next(ticks) / 10)
    monkeypatch.setattr(player, "FRAME_S", 0)
    trace = timed_trace([1.0] * 3, [])
    replay = Player(trace, near(trace, 0, ahead=True))  # as if paused when its clock stood at one second
    frames = replay.frames()
    next(frames)
    while not any(event["e"] == "step" for event in next(frames)):
        pass
    assert next(ticks) == pytest.approx(11, abs=1)


def test_a_new_speed_holds_from_now_on_and_stop_leaves_the_place():
    replay = Player(timed_trace([1.0] * 5, [2.0] * 3), speed=1000.0)
    frames = replay.frames()
    next(frames)
    replay.speed = 0.0
    assert next(frames) == []  # nothing for half a second
    assert replay.position == 0
    replay.stopped.set()
    last = list(frames)[-1]
    assert [event["e"] for event in last] == ["figures", "status"] and "0 of 8" in last[1]["text"]


def test_pausing_and_playing_on_tells_what_playing_through_tells():
    trace = made()
    through = [e for e in Player(trace, len(trace.steps)).standing() if e["e"] in ("step", "end")]
    for at in range(len(trace.steps)):
        replay = Player(trace, at, speed=1e9)
        resumed = [event for news in replay.frames() for event in news if event["e"] in ("step", "end")]
        assert resumed == through


def test_stepping_visits_every_visible_step_once_and_back_again():
    trace = made([("plain", PREFILL), ("speculative", PREFILL), ("plain", FIRST), ("speculative", FIRST),
                  ("plain", FIRST), ("speculative", SECOND), ("speculative", PREFILL)])  # fmt: skip
    shown, at, forth = [], 0, [0]
    while at < len(trace.steps):
        at = near(trace, at, ahead=True)
        forth.append(at)
        shown.append(sum(event["e"] == "step" for event in Player(trace, at).standing()))
    assert shown == [1, 2, 3, 4]
    assert near(trace, at, ahead=True) == at
    back = [at]
    while at:
        at = near(trace, at, ahead=False)
        back.append(at)
    assert len(back) == len(forth) and near(trace, 0, ahead=False) == 0
    assert near(made([]), 0, ahead=True) == near(made([]), 0, ahead=False) == 0


# --- whatever a file holds ----------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([10**400, -1, 0, 2**63, 1e308, 5e-324, float("nan"), "</script>", [], {}]),
)  # fmt: skip
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=3)


def places(value, path=()):
    """Every place in a JSON value, as a tuple of keys."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


@given(st.data())
@settings(max_examples=300)
def test_a_file_with_anything_anywhere_is_refused_in_one_line_or_plays(tmp_path_factory, data):
    raw = raw_trace()
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(sorted(filter(None, places(raw)), key=repr)))
        holder = raw
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = data.draw(values)
    file = tmp_path_factory.mktemp("fuzz") / "race.json"
    file.write_text(json.dumps(raw))
    try:
        trace = read(file)
    except TraceError as error:
        assert str(error).isprintable() and len(str(error)) < 400
        return
    for at in range(len(trace.steps) + 1):
        replay = Player(trace, at)
        json.dumps(replay.standing(), allow_nan=False)
        for frame in replay.curves.frames():
            json.dumps(frame.to_dict("records"), allow_nan=False)


# --- the tab, and no model ------------------------------------------------------------------------------------


def visitor(name="v", **parameters):
    return SimpleNamespace(session_hash=name, query_params=parameters)


def test_the_shipped_races_are_there_differ_and_are_named():
    assert shipped.names() == list(shipped.RACES) and 3 <= len(shipped.RACES) <= 5
    assert {path.name for path in shipped.FOLDER.iterdir()} == {shipped.path(name).name for name in shipped.RACES}
    for name, asked in shipped.RACES.items():
        assert f"race_{name}" in EN
        assert shipped.path(name).stat().st_size < 200_000
        trace = read(shipped.path(name))
        assert trace.machine["processor"] and trace.models["pair"] == "embedded"
        for field, value in ({"max_new_tokens": shipped.TOKENS} | dict(asked)).items():
            assert trace.settings[field] == value, f"{name} was recorded with another {field}: record it again"
        assert {tally.finish for tally in trace.tallies().values()} <= {"eos", "length"}


PLAY = """
import sys, types
for heavy in ("torch", "transformers", "tokenizers", "safetensors", "numpy.ctypeslib_"):
    sys.modules[heavy] = None  # importing it fails
import gradio as gr
from specdemo import shipped
from specdemo.ui import player
from specdemo.ui.replay_tab import ReplayTab
player.FRAME_S = 0
tab = ReplayTab()
with gr.Blocks():
    tab.build()
visitor = types.SimpleNamespace(session_hash="v")
for name in shipped.names():
    *_, last = tab.on_shipped(visitor, name, 1e9)
    assert '"e":"end"' in last[0], last[0][-300:]
    *_, last = tab.on_next(visitor, last[5])
print("played")
"""


def test_shipped_races_play_where_no_model_library_and_no_weights_exist(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PLAY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(tmp_path), "SPECDEMO_HOME": str(tmp_path / "none"), "MPLCONFIGDIR": str(tmp_path)},
    )
    assert done.stdout.endswith("played\n"), done.stderr[-2000:]
    assert not (tmp_path / "none").exists()


def outputs(frames):
    """The log of the last frame that has one, the place, and how many frames there were."""
    frames = list(frames)
    logs = [frame[0] for frame in frames if isinstance(frame[0], str)]
    return [json.loads(line) for line in logs[-1].splitlines()], frames[-1][5], len(frames)


def test_a_second_race_of_a_page_silences_the_first_and_other_pages_play_on(monkeypatch):
    monkeypatch.setattr(player, "FRAME_S", 0.001)
    tab, name = replay_tab.ReplayTab(), shipped.names()[0]
    first, elsewhere = tab.on_shipped(visitor("a"), name, 1.0), tab.on_shipped(visitor("b"), name, 1.0)
    next(first), next(elsewhere)
    silenced = tab._playing["a"]
    second = tab.on_shipped(visitor("a"), name, 1.0)
    next(second)
    assert silenced.stopped.is_set()
    assert list(first) == []
    assert next(second, None) and next(elsewhere, None)
    tab.on_pause(visitor("a"))
    assert "Paused" in outputs(second)[0][-1]["text"]
    elsewhere.close()
    assert tab._playing == {}


def test_pause_play_next_and_back_keep_the_place(monkeypatch):
    monkeypatch.setattr(player, "FRAME_S", 0.001)
    tab, here = replay_tab.ReplayTab(), visitor()
    told, place, _ = outputs(tab.on_next(here, replay_tab.Place(str(shipped.path(shipped.names()[0])))))
    assert [event["e"] for event in told].count("step") == 1
    for handler, count in ((tab.on_next, 2), (tab.on_next, 3), (tab.on_back, 2)):
        told, place, _ = outputs(handler(here, place))
        assert [event["e"] for event in told].count("step") == count
    told, place, _ = outputs(tab.on_play(here, place, 1e9))
    assert told[-1]["e"] == "end" and place.position == len(read(Path(place.source)).steps)
    again = tab.on_play(here, place, 1.0)
    assert next(again)[5].position == 0
    again.close()


def test_a_speed_set_while_playing_reaches_the_replay(monkeypatch):
    monkeypatch.setattr(player, "FRAME_S", 0.001)
    tab, here = replay_tab.ReplayTab(), visitor()
    playing = tab.on_shipped(here, shipped.names()[0], 1e-9)
    next(playing)
    tab.on_speed(here, 1e9)
    assert outputs(playing)[0][-1]["e"] == "end"


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b", None])
def test_a_bad_upload_is_one_message_and_leaves_nothing_playing(tmp_path, content):
    tab, here, file = replay_tab.ReplayTab(), visitor(), tmp_path / "<b>.json"
    if content is not None:
        file.write_bytes(content)
    playing = tab.on_shipped(here, shipped.names()[0], 1.0)
    next(playing)
    told, place, count = outputs(tab.on_upload(here, str(file), 1.0))
    assert count == 1 and [event["e"] for event in told] == ["idle", "error"] and "<b>.json" in told[1]["text"]
    assert place is None and list(playing) == [] and tab._playing == {}
    for frames in (tab.on_play(here, None, 1.0), tab.on_next(here, None), tab.on_back(here, None)):
        assert outputs(frames)[0][-1]["e"] == "error"


def test_an_unknown_name_is_refused_with_the_names_there_are():
    told, _, _ = outputs(replay_tab.ReplayTab().on_shipped(visitor(), "../../etc/passwd", 1.0))
    assert "../../etc/passwd" in told[-1]["text"] and ", ".join(shipped.names()) in told[-1]["text"]


def test_few_traces_stay_in_memory():
    assert replay_tab._trace.cache_info().maxsize <= 16


# --- links ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab():
    page = Settings(defaults=Defaults(max_new_tokens=64))
    made = RaceTab(page, None, None)
    with gr.Blocks():
        made.build()
    return made


def test_a_link_chooses_only_what_the_page_offers_and_a_mode_brings_its_length(tab):
    with gr.Blocks():
        few = {"mode": gr.Dropdown(["tree"])}
    assert links.presets({"mode": "staged"}, tab.settings, few) == ({}, ["mode: is not offered here"])
    assert links.presets({"mode": "chain"}, tab.settings, tab.fields) == ({"mode": "chain", "draft_length": 4}, [])


def test_a_link_presets_prompt_and_settings(tab):
    asked = {
        "prompt": "<script>alert(1)</script> ü", "mode": "ngram", "max_new_tokens": "32", "temperature": "0.5",
        "chat_template": "false", "dtype": "fp32", "seed": "7", "top_k": "5", "top_p": "0.5", "draft_length": "3",
        "pair": "embedded", "__theme": "dark", "view": "api", "replay": "x",
    }  # fmt: skip
    values, wrong = links.presets(asked, tab.settings, tab.fields)
    assert wrong == []
    assert values == {
        "prompt": asked["prompt"], "mode": "ngram", "max_new_tokens": 32, "temperature": 0.5, "chat_template": False,
        "dtype": "fp32", "seed": 7, "top_k": 5, "top_p": 0.5, "draft_length": 3, "pair": "embedded",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sent", "message"),
    [
        ("colour", "red", "colour: is no setting here"),
        ("draft", "/etc", "draft: is no setting here"),
        ("<b>" * 99, "x", "<b><b>.*…: is no setting"),
        ("prompt", "  ", "prompt: is empty"),
        ("prompt", "a" * 20_001, "prompt: has 20,001 characters"),
        ("mode", "magic", "mode: Input should be"),
        ("pair", "../etc", "pair: there is no"),
        ("max_new_tokens", "many", "max_new_tokens: Input should be a valid integer"),
        ("max_new_tokens", "513", "max_new_tokens: 513 is more than the 512 allowed"),
        ("max_new_tokens", "3", "max_new_tokens: 3 is outside 16 to 512 here"),
        ("temperature", "nan", "temperature: "),
        ("temperature", "5", "temperature: 5 is outside 0 to 2 here"),
        ("top_k", "1000", "top_k: 1000 is outside 0 to 200 here"),
        ("chat_template", "perhaps", "chat_template: "),
        ("seed", "-1", "seed: "),
    ],
)
def test_a_bad_parameter_is_left_out_with_its_reason_and_the_others_hold(tab, name, sent, message):
    values, wrong = links.presets({name: sent, "top_p": "0.5"}, tab.settings, tab.fields)
    assert values == {"top_p": 0.5}
    assert len(wrong) == 1 and len(wrong[0]) < 200
    assert __import__("re").match(message, wrong[0])


def test_the_order_of_parameters_does_not_matter_and_those_of_advertisers_are_passed_over(tab):
    asked = {"double_quantization": "true", "quantization": "nf4", "utm_source": "x", "fbclid": "y"}
    values = {"quantization": "nf4", "double_quantization": True}
    assert links.presets(asked, tab.settings, tab.fields) == (values, [])


def test_opening_a_link_changes_only_what_it_names(tab):
    def opened(**parameters):
        return links.opened(visitor(**parameters), tab.settings, tab.fields)

    skip = gr.skip()
    assert opened() == [skip, skip, skip, *[skip] * len(tab.fields)]
    replayed = opened(replay="refrain")
    assert replayed[0].selected == "replay" and replayed[1] == "refrain" and replayed[2:] == opened()[2:]
    told = opened(colour="red", mode="ngram", **{f"x{i}": "" for i in range(30)})
    assert told[3 + list(tab.fields).index("mode")] == "ngram"
    _, error = map(json.loads, told[2].splitlines())
    assert error["e"] == "error" and "colour: is no setting" in error["text"] and error["text"].count("x") <= 5


def test_a_trace_is_what_pydantic_writes_and_reads_whatever_its_strings(tmp_path):
    trace = made()
    trace.machine["processor"] = trace.settings["prompt"] = "".join(WORDS)
    write(trace, tmp_path / "race.json")
    assert read(tmp_path / "race.json") == trace == TypeAdapter(Trace).validate_python(trace)
    about = {fact["name"]: fact["value"] for fact in events.restart(trace)["about"]}
    assert about[EN["prompt"]] == "".join(WORDS) and "".join(WORDS) in about[EN["recorded_on"]]
