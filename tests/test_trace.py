"""A recorded run reads back to the same figures, and a file that is none says what it is."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_metrics import FIRST, PREFILL, SECOND

from specdemo.engine.types import Finish, Node, Origin, Outcome, Step, Token
from specdemo.measure import trace as trace_module
from specdemo.measure.trace import Trace, TraceError, read, write

numbers = st.floats(-1e6, 1e6)
tokens = st.builds(Token, st.integers(0, 2**31), st.sampled_from(Origin), numbers, numbers)
nodes = st.builds(
    Node, st.integers(0, 2**31), st.integers(-1, 9), st.sampled_from(Origin), st.sampled_from(Outcome),
    st.none() | st.floats(0, 1), st.none() | st.floats(0, 1),
)  # fmt: skip
steps = st.builds(
    Step, st.lists(tokens, max_size=3).map(tuple), st.lists(nodes, max_size=3).map(tuple),
    numbers, numbers, numbers, st.integers(0), st.integers(0), st.integers(0),
    st.none() | st.sampled_from(Finish), st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)  # fmt: skip


def made(taken=(("plain", PREFILL), ("plain", FIRST), ("speculative", FIRST), ("speculative", SECOND))):
    return Trace({"prompt": "p"}, {"pair": "x"}, {"torch": "y"}, list(taken), {"plain": ["a"]}, {3: "<b>"})


@given(st.lists(st.tuples(st.sampled_from(["plain", "speculative"]), steps), max_size=5))
def test_every_step_reads_back_exactly(tmp_path_factory, taken):
    file = tmp_path_factory.mktemp("trace") / "race.json"
    write(made(taken), file)
    assert read(file) == made(taken)


def test_figures_are_the_same_after_reading(tmp_path):
    write(made(), tmp_path / "race.json")
    before, after = made().tallies(), read(tmp_path / "race.json").tallies()
    assert before == after
    assert after["speculative"].acceptance_rate == pytest.approx(2 / 3)


def test_the_file_states_its_format_version_and_definitions(tmp_path):
    write(made(), tmp_path / "race.json")
    raw = json.loads((tmp_path / "race.json").read_text())
    assert (raw["format"], raw["version"]) == ("specdemo trace", 1)
    assert raw["definitions"]["speed_up"]
    assert raw.keys() == {field.name for field in fields(Trace)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a trace of this program"),
        ({"version": 99}, "trace version 99"),
        ({"version": "1"}, "trace version 1"),
        ({"steps": [["plain", {"tokens": 3}]]}, r"damaged at steps\.0"),
        ({"settings": None}, "damaged at settings"),
    ],
)
def test_a_foreign_newer_or_damaged_file_says_so(tmp_path, change, message):
    file = tmp_path / "race.json"
    write(made(), file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(TraceError, match=message):
        read(file)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1, 2]", b'{"format": "specdemo trace", "ver'])
def test_what_is_not_json_or_cut_off_says_so(tmp_path, content):
    (tmp_path / "race.json").write_bytes(content)
    with pytest.raises(TraceError, match=r"race\.json"):
        read(tmp_path / "race.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "race.json"
    write(made(), file)
    monkeypatch.setattr(trace_module.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(made([]), file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["race.json"]
    assert read(file) == made()
