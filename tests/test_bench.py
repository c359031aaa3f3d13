"""The benchmark on the embedded pair: complete rows, peers in the same run, stopped and gone on with."""

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from threading import Event

import pytest

from specdemo import bench as bench_module
from specdemo.bench import bench
from specdemo.config import Limits
from specdemo.engine.race import race
from specdemo.measure import commands
from specdemo.measure.results import ASSISTED, Book, Plan, Prompt, peers
from specdemo.models.pairs import PAIRS
from specdemo.request import RequestError

pytestmark = pytest.mark.model
ROOT = Path(__file__).parents[1]
PROMPTS = (Prompt("a", "list", "Name three fruits."), Prompt("b", "copy", "Repeat: one two one two one two"))
SETTINGS = {"max_new_tokens": 12, "pair": "embedded"}
ALONE = {"target": "embedded"}  # a target of one's own comes without a draft
PEERS = peers("embedded", None, None)


def plan(*modes, **changes):
    return Plan(PROMPTS, modes, **{"dtypes": ("fp32",), "settings": SETTINGS} | changes)


def run(asked, book, cancelled=None):
    return list(bench(asked, book, Limits(), PAIRS, cancelled or Event()))


def test_assisted_generation_stands_beside_whatever_has_a_draft_model():
    assert set(ASSISTED) < set(PEERS)
    assert set(ASSISTED).isdisjoint(peers("embedded", "embedded", None))
    assert set(ASSISTED) < set(peers("embedded", "embedded", "some/draft"))


def test_every_mode_and_peer_gives_a_whole_row_and_the_same_ids():
    asked = plan("tree", "auto", *PEERS)
    rows = run(asked, Book(asked, {}))
    assert len(rows) == len(asked.cases()) == 2 * (1 + 2 + len(PEERS))
    for row in rows:
        assert 0 < row["ttft_s"] < row["latency_s"]
        assert row["tokens"] == 12 or row["finish"] == "eos"
        assert row["lossless"] == "identical" and row["speed_up"] > 0 and row["score"] < 0
        assert row["ends"][-1][0] == row["tokens"]
        if row["mode"] in PEERS:
            assert row["steps"] == 0 and row["tokens_per_step"] is None and row["cache_mb"] is None
            assert (row["draft_weights_mb"] > 50) == (row["mode"] in ASSISTED)
        own = [other for other in rows if other["prompt"] == row["prompt"]]
        assert row["score"] == pytest.approx(own[0]["score"], abs=1e-4)
    assert {row["speed_up"] for row in rows if row["mode"] == "plain"} == {1.0}


def test_the_answers_to_a_prompt_are_measured_in_turn_and_a_peer_alone(monkeypatch):
    """Else a slow moment of the machine is one mode's alone: fixed modes differed by up to 17% between two runs."""
    asked, order = plan("ngram", "tree", "transformers generate"), []

    def watched(paths, cancelled):
        for case, step in race(paths, cancelled):
            order.append((len(paths), case.prompt.id, case.mode))
            yield case, step

    monkeypatch.setattr("specdemo.bench.race", watched)
    rows = run(asked, Book(asked, {}))
    assert [row["mode"] for row in rows] == ["plain", "ngram", "tree", "transformers generate"] * 2
    for prompt in "ab":
        modes = [mode for together, id, mode in order if (together, id) == (3, prompt)]
        first = {mode: modes.index(mode) for mode in ("plain", "ngram", "tree")}
        last = {mode: len(modes) - 1 - modes[::-1].index(mode) for mode in first}
        assert max(first.values()) < min(last.values())


def test_all_answers_to_a_prompt_are_in_the_book_before_the_first_is_told():
    asked = plan("ngram", "transformers generate")
    book = Book(asked, {})
    told = [len(book.rows) for _ in bench(asked, book, Limits(), PAIRS, Event())]
    assert told == [2, 2, 3, 5, 5, 6]


def test_a_stop_keeps_whole_rows_and_the_next_run_measures_only_the_rest(tmp_path):
    asked, cancelled = plan("ngram"), Event()
    for _ in bench(asked, Book(asked, {}, tmp_path / "rows.jsonl"), Limits(), PAIRS, cancelled):
        if len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3:
            cancelled.set()
    book = Book(asked, {}, tmp_path / "rows.jsonl")
    first = list(book.rows)
    assert len(first) == 2
    rest = run(asked, book)
    assert len(rest) == 2 and book.rows[:2] == first
    assert {row["lossless"] for row in rest} == {"identical"}


class After(Event):
    """Is set from the n-th time on that somebody looks."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def is_set(self):
        self.looks -= 1
        return self.looks < 0


# Looks: two warm-ups of eight tokens, then about one a token of forty.
@pytest.mark.parametrize(("looks", "whole"), [(30, []), (75, ["plain"])], ids=["plain", "generate"])
def test_stopped_in_mid_answer_it_adds_no_row_of_half_an_answer(looks, whole):
    story = (Prompt("s", "write", "Tell a long story about the sea."),)
    asked = Plan(story, ("transformers generate",), ("fp32",), settings=SETTINGS | {"max_new_tokens": 40})
    book, cancelled = Book(asked, {}), After(looks)
    run(asked, book, cancelled)
    assert [row["mode"] for row in book.rows] == whole and all(row["tokens"] == 40 for row in book.rows)
    assert -5 < cancelled.looks < 0  # it was heard, and at once


@pytest.mark.parametrize(
    ("modes", "changes", "message"),
    [
        (("staged",), {"settings": SETTINGS | ALONE}, "staged needs a draft model"),
        (("transformers assisted",), {"settings": SETTINGS | ALONE}, "assisted needs a draft model"),
        (("chain:0",), {}, "mode: "),
        (("tree:99",), {}, "draft_length: "),
        (("tree",), {"dtypes": ("fp8",)}, "dtype: "),
        (("tree",), {"quantizations": ("nf5",)}, "quantization: "),
        (("tree",), {"draft_lengths": (99,)}, "draft_length: "),
        (("tree",), {"settings": {"max_new_tokens": 9999}}, "max_new_tokens: "),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(modes, changes, message):
    asked = plan(*modes, **changes)
    book = Book(asked, {})
    with pytest.raises(RequestError, match=message):
        run(asked, book)
    assert not book.rows


def test_what_was_measured_before_something_broke_is_written(tmp_path):
    """One prompt that is too long for the model took every row before it along."""
    (tmp_path / "p.txt").write_text("Name two colours.\n" + "word " * 9000 + "\n")
    asked = ["--prompts", tmp_path / "p.txt", "--modes", "ngram", "--max-new-tokens", 8, "--dtypes", "fp32", "--json"]
    command = [sys.executable, "-m", "specdemo", "bench", *map(str, [*asked, "--csv", tmp_path / "r.csv"])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "leaves room for" in done.stderr
    assert [row["mode"] for row in json.loads(done.stdout.splitlines()[-1])["rows"]] == ["plain", "ngram"]
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3


def test_what_was_measured_before_memory_ran_out_is_kept_and_the_status_says_that_it_broke(monkeypatch):
    def breaking(plan, book, *_):
        book.add({"prompt": "a", "mode": "plain"})
        yield book.rows[-1]
        raise RuntimeError("out of memory")

    monkeypatch.setattr("specdemo.bench.bench", breaking)
    book = Book(plan("ngram"), {})
    assert commands._measure(book.plan, book) == ("a way to answer broke: RuntimeError: out of memory", 1)
    assert len(book.rows) == 1


def test_nothing_holds_the_models_of_a_precision_when_the_next_is_loaded(monkeypatch):
    """Else a model that fits alone is refused for the memory that the one before it takes."""
    made, held, original = [], [], bench_module._run

    def watched(case, *rest, **changes):
        if case.dtype == "bf16":
            gc.collect()
            held.extend(old for old in made if old() is not None and old().request.dtype == "fp32")
        new = original(case, *rest, **changes)
        made.append(weakref.ref(new))
        return new

    monkeypatch.setattr(bench_module, "_run", watched)
    asked = Plan(PROMPTS[:1], ("ngram",), ("fp32", "bf16"), settings=SETTINGS)
    assert len(run(asked, Book(asked, {}))) == 4 and len(made) == 8 and held == []


def test_the_command_prints_json_last_and_writes_csv_and_markdown(tmp_path):
    (tmp_path / "p.txt").write_text("Name two colours.\n")
    files = {"--csv": "r.csv", "--markdown": "new/r.md", "--out": "rows.jsonl"}
    written = [part for option, name in files.items() for part in (option, tmp_path / name)]
    asked = ["--prompts", tmp_path / "p.txt", "--modes", "ngram", "--max-new-tokens", 8, "--dtypes", "fp32", "--json"]
    command = [sys.executable, "-m", "specdemo", "bench", *map(str, [*asked, *written])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {"rows", "averages", "advice", "machine"}
    assert [row["mode"] for row in found["rows"]] == ["plain", "ngram"]
    assert found["rows"][0].keys() >= {
        "prompt", "kind", "mode", "quantization", "dtype", "draft_length", "tokens", "latency_s", "ttft_s",
        "decode_tokens_per_s", "score", "tokens_per_step", "acceptance_rate", "speed_up", "lossless",
    }  # fmt: skip
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3
    assert "python -m specdemo bench" in (tmp_path / "new/r.md").read_text()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert json.loads(again.stdout.splitlines()[-1])["rows"] == found["rows"]  # nothing was measured anew


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "/nowhere.txt"], "No such file"),
        (["--modes", "magic"], "modes: there is no 'magic'"),
        (["--pair", "none"], "pair: there is no 'none'"),
        (["--max-new-tokens", "0"], "max_new_tokens: "),
        (["--quantizations", "nf5"], "quantization: "),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message):
    done = subprocess.run(
        [sys.executable, "-m", "specdemo", "bench", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
