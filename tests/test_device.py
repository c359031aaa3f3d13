"""What a browser on this machine draws is on nobody's clock: the device waits for it, and not for ever."""

from threading import Event
from types import SimpleNamespace

import pytest

from specdemo import device


class Processors:
    """A clock that only waiting moves, and processors that are busy for the first `busy` looks."""

    def __init__(self, monkeypatch):
        self.busy, self.looks, self.now, self.idle, self.stopped = 0, 0, 0.0, 0.0, False
        monkeypatch.setattr(device, "perf_counter", lambda: self.now)
        monkeypatch.setattr(device.psutil, "cpu_times", lambda: SimpleNamespace(idle=self.idle))
        monkeypatch.setattr(device.psutil, "cpu_count", lambda: 2)

    def wait(self, seconds):
        """As of an Event."""
        self.now += seconds
        self.looks += 1
        if self.looks > self.busy:
            self.idle += 2 * seconds
        return self.stopped


@pytest.fixture
def processors(monkeypatch):
    return Processors(monkeypatch)


@pytest.mark.parametrize("busy, looks", [(0, 2), (7, 9)])
def test_it_waits_until_the_processors_have_been_idle_twice(processors, busy, looks):
    processors.busy = busy
    device.settle(2.0, processors)
    assert processors.looks == looks


@pytest.mark.parametrize("most_s, looks", [(0.0, 0), (0.25, 13)])
def test_it_waits_no_longer_than_it_was_told(processors, most_s, looks):
    processors.busy = 1000
    device.settle(most_s, processors)
    assert processors.looks == looks


def test_a_stop_is_heard_meanwhile(processors):
    processors.busy, processors.stopped = 1000, True
    device.settle(2.0, processors)
    assert processors.looks == 1


def test_a_batch_that_was_shown_is_given_time_to_be_drawn_before_the_next(monkeypatch):
    waits, seen, closed = [], [], Event()

    def items():
        try:
            yield from "abc"
        finally:
            closed.set()

    monkeypatch.setattr(device, "settle", lambda seconds, _: waits.append(seconds))
    monkeypatch.setattr(device, "perf_counter", iter(range(100)).__next__)
    monkeypatch.setattr(device, "FRAME_S", 1.5)  # a batch an item, by a clock that ticks at every look
    for batch in device.batches(items, Event(), settle_s=0.7):
        seen += batch
    assert seen == ["a", "b", "c"]
    assert waits == [0.7] * 3
    assert closed.wait(5)
