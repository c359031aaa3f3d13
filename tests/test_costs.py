"""What passes cost: chance in the measured table is smoothed, what the machine really does stays."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.engine.auto import Costs
from specdemo.models import costs as module
from specdemo.models.costs import LEAST, ROUNDS, ROWS, SECONDS, shape

LINE = 1 + 0.05 * (np.array(ROWS) - 1)
STEPS = np.where(np.array(ROWS) > 4, 1.5, 1.0)
SEEDS = st.integers(0, 10_000)


def rounds(truth, noise, seed, count=ROUNDS):
    """Seconds of a machine that is now slow for a whole round, now for one pass."""
    chance = np.random.default_rng(seed)
    slow = 1 + chance.exponential(0.2, (count, 1))
    return 0.04 * truth * slow * (1 + chance.exponential(noise, (count, len(ROWS)))) if noise else 0.04 * truth * slow


@given(SEEDS)
def test_a_single_tokens_pass_costs_one_and_more_never_cost_less(seed):
    found = shape(rounds(LINE, 0.3, seed))
    assert found[0] == 1
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("count", [LEAST, ROUNDS])
def test_chance_leaves_no_bumps_on_a_line(count):
    """A bump: what one token more costs in the table, less what it really costs. The plain medians have larger ones."""
    smooth, rough = [], []
    for seed in range(50):
        seconds = rounds(LINE, 0.1, seed, count)
        medians = np.median(seconds / seconds[:, :1], axis=0)
        for bumps, table in ((smooth, shape(seconds)), (rough, medians)):
            bumps.append(np.abs(np.diff(table) / np.diff(ROWS) - 0.05).mean())
    assert np.mean(smooth) < 0.25 * np.mean(rough)


@pytest.mark.parametrize("truth", [LINE, STEPS], ids=["a line", "steps"])
def test_what_every_round_says_stays_as_it_is(truth):
    assert shape(rounds(truth, 0.0, 1)) == pytest.approx(truth)
    assert shape(rounds(truth, 0.002, 1)) == pytest.approx(truth, abs=0.02)


@pytest.mark.parametrize(("seconds", "expected"), [(1e-9, ROUNDS), (1.0, LEAST), (SECONDS / len(ROWS) / 7.5, 8)])
def test_slow_passes_are_measured_fewer_times_but_never_too_few(monkeypatch, seconds, expected):
    asked = []
    monkeypatch.setattr(module, "_seconds", lambda target, rows: asked.append(rows) or seconds)
    found, calm = module.measure(SimpleNamespace(target=model("llama")))
    assert asked == list(ROWS) * expected
    assert calm and len(found.verify) == max(ROWS)


def test_more_nodes_than_were_measured_are_not_free():
    costs = Costs((1.0, 1.1, 1.2, 1.3))
    assert [costs.step(n) for n in (0, 3, 4, 13)] == pytest.approx([1.0, 1.3, 1.4, 2.3])
    assert Costs((2.0,)).step(5) == 2.0
