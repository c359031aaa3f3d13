"""A recorded run reads back to the same figures, and a file that is none says what it is."""

import gzip
import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_metrics import FIRST, PREFILL, SECOND

from specdemo.engine.types import Finish, Node, Origin, Outcome, Step, Token
from specdemo.measure import trace as trace_module
from specdemo.measure.trace import MAX_BYTES, PATHS, Trace, TraceError, read, write

SETTINGS = {
    "prompt": "p", "mode": "ngram", "dtype": "fp32", "temperature": 0.5, "top_k": 0, "top_p": 1.0, "seed": 42,
    "max_new_tokens": 64, "draft_length": 8,
}  # fmt: skip
MODELS = {"pair": "x", "draft": None, "target_weight_bytes": 10, "draft_weight_bytes": 2}

numbers = st.floats(-1e6, 1e6)
times = st.floats(0, 100)
amounts = st.integers(0, 2**63 - 1)
tokens = st.builds(Token, st.integers(0, 2**31), st.sampled_from(Origin), numbers, numbers)
nodes = st.builds(
    Node, st.integers(0, 2**31), st.just(-1), st.sampled_from(Origin), st.sampled_from(Outcome),
    st.none() | st.floats(0, 1), st.none() | st.floats(0, 1),
)  # fmt: skip
steps = st.builds(
    Step, st.lists(tokens, max_size=3).map(tuple), st.lists(nodes, max_size=3).map(tuple),
    times, times, st.floats(200, 300), amounts, amounts, amounts,
    st.none() | st.sampled_from(Finish), st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)  # fmt: skip


def made(taken=(("plain", PREFILL), ("plain", FIRST), ("speculative", FIRST), ("speculative", SECOND))):
    pieces = {name: ["<b>" for by, step in taken if by == name for _ in step.tokens] for name in PATHS}
    vocabulary = {node.id: "</script>" for _, step in taken for node in step.nodes}
    return Trace(dict(SETTINGS), dict(MODELS), {"torch": "y"}, list(taken), pieces, vocabulary)


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


def changed(value, where="", to=None):
    """A copy with one value inside replaced, or taken away where `to` is ...; `where` is like "steps.0.1.tokens"."""
    raw = json.loads(json.dumps(value))
    *parts, last = [int(part) if part.isdigit() else part for part in where.split(".")]
    holder = raw
    for part in parts:
        holder = holder[part]
    if to is ...:
        del holder[last]
    else:
        holder[last] = to
    return raw


def raw_trace():
    return json.loads(TypeAdapter(Trace).dump_json(made()))


@pytest.mark.parametrize(
    ("where", "to", "message"),
    [
        ("format", "other", "not a trace of this program"),
        ("version", 99, "trace version 99"),
        ("version", "1", "trace version 1"),
        ("version", True, "trace version True"),
        ("version", 0, "trace version 0"),
        ("version", "9" * 500, "trace version 9+…"),
        ("settings", None, "damaged at settings"),
        ("settings.temperature", ..., "damaged at temperature: Field required"),
        ("settings.temperature", float("nan"), "cannot be read as JSON|damaged at temperature"),
        ("settings.temperature", 1e999, "cannot be read as JSON|damaged at temperature"),
        ("settings.prompt", ["p"], "damaged at prompt"),
        ("settings.quantization", 4, "damaged at quantization"),
        ("settings.repetition_penalty", "<b>", "damaged at repetition_penalty"),
        ("settings.max_new_tokens", 3, r"max_new_tokens: speculative has more tokens than that"),
        ("models.target_weight_bytes", 10**400, "damaged at target_weight_bytes"),
        ("models.target_weight_bytes", -1, "damaged at target_weight_bytes"),
        ("steps.0", ["plain", {"tokens": 3}], r"damaged at steps\.0"),
        ("steps.0.0", "<script>", r"damaged at steps\.0: there is no path <script>"),
        ("steps.0.1.seconds", "0.1", r"damaged at steps\.0\.1\.seconds"),
        ("steps.0.1.seconds", 0, r"damaged at steps\.0\.seconds"),
        ("steps.0.1.seconds", -1.5, r"damaged at steps\.0\.seconds"),
        ("steps.0.1.seconds", 3601, r"damaged at steps\.0\.seconds"),
        ("steps.0.1.seconds", float("inf"), "damaged at steps|cannot be read as JSON"),
        ("steps.1.1.draft_s", -0.1, r"damaged at steps\.1\.draft_s"),
        ("steps.1.1.verify_s", 9, r"damaged at steps\.1\.draft_s"),
        ("steps.1.1.cache_bytes", 10**30, r"damaged at steps\.1\.cache_bytes"),
        ("steps.1.1.finish", "tired", r"damaged at steps\.1\.1\.finish"),
        ("steps.1.1.tokens.0.id", True, r"damaged at steps\.1\.1\.tokens\.0\.id"),
        ("steps.1.1.tokens.0.id", -1, r"damaged at steps\.1\.tokens"),
        ("steps.1.1.tokens.0.logprob", None, r"damaged at steps\.1\.1\.tokens\.0\.logprob"),
        ("steps.1.1.tokens.0.logprob", -1e300, r"damaged at steps\.1\.tokens"),
        ("steps.1.1.tokens.0.margin", float("nan"), r"damaged at steps\.1\.1\.tokens\.0\.margin"),
        ("steps.3.1.nodes.1.q", float("-inf"), r"damaged at steps\.3\.1\.nodes\.1\.q"),
        ("steps.1.1.tokens.0.origin", "me", r"damaged at steps\.1\.1\.tokens\.0\.origin"),
        ("steps.3.1.nodes.1.parent", 1, r"damaged at steps\.3\.nodes\.1\.parent"),
        ("steps.3.1.nodes.1.parent", -2, r"damaged at steps\.3\.nodes\.1\.parent"),
        ("steps.3.1.nodes.1.id", 77, r"damaged at steps\.3\.nodes\.1\.id: has no text"),
        ("steps.3.1.nodes.1.p", "half", r"damaged at steps\.3\.1\.nodes\.1\.p"),
        ("pieces.plain", ["a", "b"], r"damaged at pieces\.plain: there must be one for each of the 1 tokens"),
        ("pieces.speculative", ..., r"damaged at pieces\.speculative"),
        ("pieces.plain.0", 5, r"damaged at pieces\.plain\.0"),
        ("vocabulary", {"one": "x"}, r"damaged at vocabulary\.one"),
        ("definitions", [], "damaged at definitions"),
        ("machine", "here", "damaged at machine"),
    ],
)
def test_a_foreign_newer_or_damaged_file_says_so_in_one_line(tmp_path, where, to, message):
    file = tmp_path / "race.json"
    file.write_text(json.dumps(changed(raw_trace(), where, to)))
    with pytest.raises(TraceError, match=message) as caught:
        read(file)
    assert str(caught.value).startswith("race.json ") and "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_more_nodes_than_a_step_can_draft_and_more_time_than_anyone_watches_are_refused(tmp_path):
    wide = Step(FIRST.tokens, (Node(1, -1, Origin.DRAFT, Outcome.REJECTED, None, None),) * 1001, seconds=1.0)
    write(made([("plain", wide)]), tmp_path / "race.json")
    with pytest.raises(TraceError, match=r"steps\.0\.nodes: there are more than 1000"):
        read(tmp_path / "race.json")
    write(made([("plain", Step((), seconds=2000.0))] * 2), tmp_path / "race.json")
    with pytest.raises(TraceError, match="plain takes more than 3600 seconds"):
        read(tmp_path / "race.json")


def test_a_stranger_s_names_stay_short_and_on_one_line(tmp_path):
    file = tmp_path / ("a\nb\x1b" + "c" * 150 + ".json")
    raw = raw_trace()
    raw["vocabulary"]["d\ne" * 5000] = "x"
    file.write_text(json.dumps(raw))
    with pytest.raises(TraceError) as caught:
        read(file)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_size_is_limited_before_and_after_unpacking(tmp_path):
    write(made(), tmp_path / "race.json")
    size = (tmp_path / "race.json").stat().st_size
    assert read(tmp_path / "race.json", size) == made()
    (tmp_path / "bomb.json").write_bytes(gzip.compress(b" " * 100_000_000))
    for name, most in (("race.json", size - 1), ("bomb.json", MAX_BYTES)):
        with pytest.raises(TraceError, match="is larger than the"):
            read(tmp_path / name, most)


def test_a_file_is_gzipped_by_its_name_and_read_by_its_content(tmp_path):
    write(made(), tmp_path / "race.json.gz")
    assert (tmp_path / "race.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    (tmp_path / "race.json.gz").rename(tmp_path / "renamed")
    assert read(tmp_path / "renamed") == made()
    cut = (tmp_path / "renamed").read_bytes()[:-20]
    for broken in (cut, cut[:40] + b"xx" + cut[42:], b"\x1f\x8b", b"\x1f\x8b\x00"):
        (tmp_path / "renamed").write_bytes(broken)
        with pytest.raises(TraceError, match="renamed cannot be read"):
            read(tmp_path / "renamed")
    with pytest.raises(TraceError, match="gone"):
        read(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff", b"[1, 2]", b'{"format": "specdemo trace", "ver', b"[" * 10**6, b'{"a": "\\ud800"}', b'{"a": 1e'],
)
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
