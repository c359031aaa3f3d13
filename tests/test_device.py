"""What a browser on this machine draws is on nobody's clock: the device waits for it, and not for ever."""

from threading import Event
from types import SimpleNamespace

import pytest

from specdemo import device


@pytest.fixture
def processors(monkeypatch):
    """A clock and processors that are busy for the first `busy` looks; `looks` counts them."""
    state = SimpleNamespace(busy=0, looks=0, now=0.0, idle=0.0)

    def sleep(seconds):
        state.now += seconds
        state.looks += 1
        if state.looks > state.busy:
            state.idle += seconds * 2

    monkeypatch.setattr(device, "sleep", sleep)
    monkeypatch.setattr(device, "perf_counter", lambda: state.now)
    monkeypatch.setattr(device.psutil, "cpu_times", lambda: SimpleNamespace(idle=state.idle))
    monkeypatch.setattr(device.psutil, "cpu_count", lambda: 2)
    return state


@pytest.mark.parametrize("busy, looks", [(0, 2), (7, 9)])
def test_it_waits_until_the_processors_have_been_idle_twice(processors, busy, looks):
    processors.busy = busy
    device.settle(2.0)
    assert processors.looks == looks


@pytest.mark.parametrize("most_s, looks", [(0.0, 0), (0.25, 13)])
def test_it_waits_no_longer_than_it_was_told(processors, most_s, looks):
    processors.busy = 1000
    device.settle(most_s)
    assert processors.looks == looks


def test_before_each_batch_the_last_one_is_given_time_to_be_drawn(monkeypatch):
    waits, seen = [], []
    monkeypatch.setattr(device, "settle", waits.append)
    monkeypatch.setattr(device, "perf_counter", iter(range(100)).__next__)
    monkeypatch.setattr(device, "FRAME_S", 1.5)  # a batch an item, by a clock that ticks at every look
    for items in device.batches(lambda: iter("abc"), Event(), settle_s=0.7):
        seen += items
    assert seen == ["a", "b", "c"]
    assert waits == [0.7] * 4
