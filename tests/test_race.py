"""The race: fair by own clocks, and over within one step."""

from threading import Event
from time import perf_counter, sleep

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.engine import race as race_module
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.drafters import NgramDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.race import race, survivable, timed
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Finish, Origin, Step, Task, Token
from specdemo.measure.metrics import Tally

TOKEN = Token(1, Origin.TARGET, -0.5, 1.0)


def scripted(seconds):
    for second in seconds:
        yield Step((TOKEN,), seconds=second)


@given(a=st.lists(st.floats(0.01, 10), max_size=20), b=st.lists(st.floats(0.01, 10), max_size=20))
def test_the_path_that_has_used_less_of_the_device_goes_next(a, b):
    used, left = {"a": 0.0, "b": 0.0}, {"a": len(a), "b": len(b)}
    for name, step in race({"a": scripted(a), "b": scripted(b)}, Event()):
        other = "b" if name == "a" else "a"
        assert used[name] <= used[other] or left[other] == 0
        used[name] += step.seconds
        left[name] -= 1
    assert left == {"a": 0, "b": 0}


def test_cancelling_is_heard_after_the_step_in_progress():
    cancelled, seen = Event(), []
    for name, _ in race({"a": scripted([1] * 50), "b": scripted([1] * 50)}, cancelled):
        seen.append(name)
        if len(seen) == 5:
            cancelled.set()
    assert len(seen) == 5


@pytest.mark.parametrize("way", ["cancelled", "closed"])
def test_every_path_is_closed_however_the_race_ends(way):
    closed = []

    def path(name):
        try:
            while True:
                yield Step((TOKEN,), seconds=1.0)
        finally:
            closed.append(name)

    cancelled = Event()
    running = race({"a": path("a"), "b": path("b")}, cancelled)
    next(running), next(running)
    if way == "cancelled":
        cancelled.set()
        assert list(running) == []
    else:
        running.close()
    assert sorted(closed) == ["a", "b"]


def test_a_path_that_breaks_says_how_and_the_other_goes_on():
    def breaking():
        yield Step((TOKEN,), seconds=1.0)
        raise RuntimeError("the draft ran out of memory\nwith a second line")

    paths = {"a": scripted([1] * 5), "b": survivable(breaking())}
    clocked = {name: timed(path, lambda: None, lambda: (0, 0)) for name, path in paths.items()}
    seen = {"a": [], "b": []}
    for name, step in race(clocked, Event()):
        seen[name].append(step)
    assert [len(step.tokens) for step in seen["a"]] == [1] * 5
    assert [len(step.tokens) for step in seen["b"]] == [1, 0]
    assert seen["b"][-1].finish is Finish.FAILED and seen["b"][-1].seconds > 0
    assert seen["b"][-1].note == "RuntimeError: the draft ran out of memory"


def test_a_path_is_charged_for_its_own_work_and_for_nothing_between_its_steps():
    def path():
        for _ in range(4):
            sleep(0.02)
            yield Step((TOKEN,))

    began, own = perf_counter(), 0.0
    for step in timed(path(), lambda: None, lambda: (7, 9)):
        own += step.seconds
        sleep(0.05)  # the reader's own time: rendering, or the other path
        assert (step.process_bytes, step.device_bytes) == (7, 9)
    wall = perf_counter() - began
    assert 0.08 <= own <= wall - 0.2


def test_the_device_is_synchronised_before_and_after_every_step():
    calls = []

    def path():
        for _ in range(3):
            calls.append("step")
            yield Step((TOKEN,))

    list(timed(path(), lambda: calls.append("sync"), lambda: (0, 0)))
    assert calls == ["sync", "step", "sync"] * 3 + ["sync", "sync"]


def test_raced_and_solo_paths_commit_the_same_tokens():
    target = model()
    task = Task((3, 4, 5, 3, 4), 30)

    def paths():
        rng = Randomness(1, torch.device("cpu"))
        return {
            "plain": plain(CachedModel(target), task, rng),
            "speculative": speculative(CachedModel(target), NgramDraft(NgramModel(NgramTable())), task, 3, rng),
        }

    solo = {name: [token.id for step in path for token in step.tokens] for name, path in paths().items()}
    raced = {"plain": [], "speculative": []}
    clocked = {name: timed(path, lambda: None, lambda: (0, 0)) for name, path in paths().items()}
    for name, step in race(clocked, Event()):
        raced[name] += [token.id for token in step.tokens]
    assert raced == solo


def test_raced_and_solo_figures_agree(monkeypatch):
    """On a clock of our own, which the paths alone move: what one path costs is not on the other's clock."""
    now = [0.0]
    monkeypatch.setattr(race_module, "perf_counter", lambda: now[0])

    def paths():
        def path(seconds, tokens):
            for _ in range(6):
                now[0] += seconds
                yield Step((TOKEN,) * tokens)

        return {"plain": path(0.5, 1), "speculative": path(0.7, 3)}

    def clocked(path):
        return timed(path, lambda: None, lambda: (0, 0))

    raced = {"plain": Tally(), "speculative": Tally()}
    for name, step in race({name: clocked(path) for name, path in paths().items()}, Event()):
        now[0] += 0.3  # drawing
        raced[name].add(step)
    for name, path in paths().items():
        solo = Tally()
        for step in clocked(path):
            solo.add(step)
        for figure in ("decode_tokens_per_s", "ttft_s", "latency_s"):
            assert getattr(raced[name], figure) == pytest.approx(getattr(solo, figure))
    assert raced["plain"].decode_tokens_per_s == pytest.approx(2.0)
