"""A draft that cannot be loaded, or breaks while it drafts: told on the page, and the plain path goes on."""

import json
from dataclasses import replace
from threading import Event

import pytest
from tiny import model, tokenizer

from specdemo import bench as runner
from specdemo import modes, run
from specdemo.config import Limits, Settings
from specdemo.engine.drafters import NgramDraft
from specdemo.engine.ngram import NgramModel
from specdemo.engine.types import Finish
from specdemo.measure.results import BenchError, Book, Plan, Prompt
from specdemo.measure.trace import read, write
from specdemo.models.load import DraftError, load
from specdemo.models.pairs import Pair
from specdemo.request import RaceRequest, RequestError
from specdemo.ui.player import Player
from specdemo.ui.race_tab import RaceTab
from specdemo.ui.show import Show
from specdemo.ui.texts import text

WORDS = [f"w{i}" for i in range(32)]
TOKENS = 12


class Breaking(NgramDraft):
    """Drafts well for some steps."""

    left = 3

    def propose(self, tokens, budget):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the draft ran out of memory")
        return super().propose(tokens, budget)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny pair, target and draft whole."""
    folder = tmp_path_factory.mktemp("tiny")
    for place, seed in ((folder, 0), (folder / "draft", 1)):
        model(seed=seed).save_pretrained(place)
        tokenizer(WORDS).save_pretrained(place)
    return Pair("tiny", "tiny", str(folder), draft=str(folder / "draft"))


@pytest.fixture
def breaking(monkeypatch):
    monkeypatch.setitem(modes.DRAFTERS, "chain", lambda loaded, target, task, rng: Breaking(NgramModel(loaded.ngram)))


@pytest.fixture
def offered(monkeypatch, pair):
    """The pair in the place of the embedded one."""
    monkeypatch.setitem(run.PAIRS, "embedded", pair)


def request(**changes):
    return RaceRequest(
        prompt="w3 w4 w5 w3 w4", **{"mode": "chain", "dtype": "fp32", "max_new_tokens": TOKENS} | changes
    )


class Ready:
    """Stands in for the warm-up: nothing is to be fetched."""

    fetched, words = Event(), ""
    fetched.set()


def told(show: Show):
    return [event for news in show.frames() for event in news]


def shown(**changes) -> Show:
    return RaceTab(Settings(), Ready(), None).show(**request(**changes).model_dump(exclude={"target", "draft"}))


def test_a_draft_that_breaks_ends_its_own_path_only(pair, breaking):
    race = run.Run(request(), load(pair, "fp32"), Event())
    for _ in race:
        pass
    plain, speculative = race.tallies["plain"], race.tallies["speculative"]
    assert plain.tokens == TOKENS and plain.finish == Finish.LENGTH
    assert 0 < speculative.tokens < TOKENS and speculative.finish == Finish.FAILED
    assert speculative.token_ids == plain.token_ids[: speculative.tokens]
    assert race.failure == "RuntimeError: the draft ran out of memory"
    assert race.result()["lossless"]["verdict"] == "incomplete"


def test_a_sampled_race_with_a_broken_path_is_not_called_lossless(pair, breaking):
    race = run.Run(request(temperature=0.8), load(pair, "fp32"), Event())
    for _ in race:
        pass
    result = race.result()
    assert result["lossless"]["verdict"] == "incomplete" and "out of memory" in result["failure"]


def test_a_drafter_that_cannot_even_be_made_ends_its_own_path_only(pair, monkeypatch):
    def fails(*_):
        raise OSError("no room")

    monkeypatch.setitem(modes.DRAFTERS, "chain", fails)
    race = run.Run(request(), load(pair, "fp32"), Event())
    for _ in race:
        pass
    assert race.failure == "OSError: no room" and race.tallies["plain"].finish == Finish.LENGTH


def test_caches_that_do_not_fit_are_refused_before_the_race(pair, monkeypatch):
    """Llama of SMALL: per token 2 (keys, values) x 2 layers x 1 head x 8 numbers of 4 bytes, in three caches."""
    loaded, length = load(pair, "fp32"), len(run.Run(request(), load(pair, "fp32"), Event()).task.prompt) + TOKENS
    needed = 3 * 32 * 4 * length
    monkeypatch.setattr(run.memory, "free_bytes", lambda _: needed / run.ROOM + 1)
    assert run.Run(request(), loaded, Event()).task.max_new_tokens == TOKENS
    with pytest.raises(RequestError, match=f"max_new_tokens: the caches of {length + 1} tokens"):
        run.Run(request(max_new_tokens=TOKENS + 1), loaded, Event())


def test_a_plain_path_that_breaks_leaves_the_speculative_one_and_is_named(pair, offered, monkeypatch):
    def fails(*_):
        yield from ()
        raise RuntimeError("no memory left")

    monkeypatch.setattr(run, "plain", fails)
    race = run.Run(request(), load(pair, "fp32"), Event())
    for _ in race:
        pass
    assert race.failure == "RuntimeError: no memory left" and race.tallies["speculative"].tokens == TOKENS
    assert race.result()["speed_up"] is None and race.result()["lossless"]["verdict"] == "incomplete"
    events = told(shown())
    assert events[-1]["finish"] == {"plain": "failed", "speculative": "length"}
    assert events[-1]["text"].startswith(text("failed_plain"))


def test_stop_is_heard_while_the_models_are_fetched(offered, monkeypatch):
    held = Event()
    monkeypatch.setattr(Ready, "fetched", held)
    show = shown()
    show.cancelled.set()
    try:
        assert told(show)[-1]["text"] == text("stopped_early")
    finally:
        held.set()


def test_the_page_tells_it_at_once_and_goes_on_with_the_plain_path(offered, breaking):
    events = told(shown())
    at = next(i for i, event in enumerate(events) if event["e"] == "failure")
    assert events[at]["side"] == "speculative" and "the draft ran out of memory" in events[at]["text"]
    assert {event["side"] for event in events[at:] if event["e"] == "step"} == {"plain"}
    assert events[-1]["e"] == "end" and events[-1]["finish"] == {"plain": "length", "speculative": "failed"}
    assert "broke" in events[-1]["text"]


def test_a_recorded_failure_is_replayed(pair, breaking, tmp_path):
    race = run.Run(request(), load(pair, "fp32"), Event())
    for _ in race:
        pass
    write(race.trace, tmp_path / "race.json")
    trace = read(tmp_path / "race.json")
    events = Player(trace, len(trace.steps)).standing()
    assert [event["side"] for event in events if event["e"] == "failure"] == ["speculative"]


@pytest.mark.parametrize("weights", [b"", b"not weights"])
def test_a_draft_that_cannot_be_loaded_leaves_the_plain_path(monkeypatch, pair, tmp_path, weights):
    tokenizer(WORDS).save_pretrained(tmp_path)
    model(seed=1).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    broken = replace(pair, draft=str(tmp_path))
    monkeypatch.setitem(run.PAIRS, "embedded", broken)
    with pytest.raises(DraftError, match="the draft cannot be loaded"):
        load(broken, "fp32")
    events = told(shown())
    assert [event["text"] for event in events if event["e"] == "failure"][0].count("the draft cannot be loaded") == 1
    assert events[-1]["finish"] == {"plain": "length", "speculative": "failed"}
    assert str(tmp_path) in json.dumps(events)  # whose machine it is wants to know which file


def test_a_broken_table_or_head_counts_as_a_draft_too(pair, tmp_path):
    (tmp_path / "file").write_bytes(b"nothing of the kind")
    for part in ("ngram", "head"):
        with pytest.raises(DraftError):
            load(replace(pair, draft=None, **{part: tmp_path / "file"}), "fp32")


def test_a_benchmark_makes_no_row_of_half_an_answer(offered, breaking):
    plan = Plan((Prompt("one", "list", "w3 w4 w5"),), ("chain",), ("fp32",),
                settings={"max_new_tokens": TOKENS})  # fmt: skip
    book = Book(plan, {})
    with pytest.raises(BenchError, match="chain broke on prompt 'one': RuntimeError"):
        list(runner.bench(plan, book, Limits(), ["embedded"], Event()))
    assert all(row["lossless"] == "identical" for row in book.rows)
