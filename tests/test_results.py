"""A benchmark's plan, its rows in a file, and what is made of them; no model."""

import json
import math
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdemo.engine.types import Finish, Origin, Token
from specdemo.measure import report
from specdemo.measure.advisor import advice
from specdemo.measure.metrics import Tally
from specdemo.measure.results import (
    BenchError,
    Book,
    Plan,
    Prompt,
    is_peer,
    read_prompts,
    results,
    row,
    tally_of,
)

PROMPTS = (Prompt("a", "list", "x"), Prompt("b", "code", "y"))
PLAN = Plan(PROMPTS, ("tree", "transformers generate"), draft_lengths=(4, 8), repeats=2)
MACHINE = {"processor": "one"}
LATENCIES = {"plain": 4.0, "tree": 2.0, "ngram": 2.0, "auto": 2.0, "transformers generate": 5.0}


def tally(seconds, ids=(5, 6, 7), steps=1):
    committed = [Token(id, Origin.TARGET, -1.0, 2.0) for id in ids]
    ends = [(1, seconds / 4), (len(ids), seconds)]
    kept = [steps] if steps else []
    return Tally(
        steps=steps, latency_s=seconds, ttft_s=seconds / 4, first=1, committed=committed, ends=ends,
        finish=Finish.LENGTH, kept=kept, draft_s=seconds / 10,
    )  # fmt: skip


def made(case, plain=None, seconds=None, **changes):
    seconds = seconds or LATENCIES[case.mode]
    taken = tally(seconds, steps=0 if is_peer(case.mode) else 2, **changes)
    return row(
        case, taken, plain or tally(4.0), greedy=True, dtype="fp32",
        target_weights_mb=10.0, draft_weights_mb=1.0, cache_mb=2.0,
    )  # fmt: skip


def test_a_plan_goes_round_by_round_and_each_prompt_has_its_heat_with_plain_decoding_first():
    cases = PLAN.cases()
    assert [(c.prompt.id, c.repeat, c.mode, c.draft_length) for c in cases[:8]] == [
        ("a", 0, "plain", None), ("a", 0, "tree", 4), ("a", 0, "tree", 8), ("a", 0, "transformers generate", None),
        ("b", 0, "plain", None), ("b", 0, "tree", 4), ("b", 0, "tree", 8), ("b", 0, "transformers generate", None),
    ]  # fmt: skip
    heats = [len(list(heat)) for _, heat in groupby(cases, key=lambda case: case.heat)]
    assert heats == [3, 1] * 4  # what is measured in turn, and what runs alone
    assert len({case.key for case in cases}) == len(cases) == 16
    assert all(case.reference in {c.key for c in cases} for case in cases)


def test_modes_of_transformers_are_told_by_name():
    for name in ("generate", "prompt lookup", "prompt lookup:3", "assisted", "assisted:12"):
        assert is_peer(f"transformers {name}")
    for name in ("generate", "transformers", "transformers generate:3", "transformers assisted:0", "tree"):
        assert not is_peer(name)


def test_a_mode_may_name_its_draft_length_and_no_setting_comes_twice():
    plan = Plan(PROMPTS[:1], ("chain:2", "chain", "chain:4", "transformers prompt lookup:3", "tree"))
    assert [(case.mode, case.draft_length) for case in plan.cases()] == [
        ("plain", None), ("chain", 2), ("chain", 4), ("tree", 16), ("transformers prompt lookup:3", None),
    ]  # fmt: skip
    assert plan.answers == 5
    lengths = Plan(PROMPTS[:1], ("chain:2", "tree"), draft_lengths=(3, 5)).cases()
    assert [(case.mode, case.draft_length) for case in lengths[1:]] == [("chain", 2), ("tree", 3), ("tree", 5)]
    assert "--modes=chain:2,chain" in plan.command("own")
    mixed = Plan(PROMPTS[:1], ("tree", "transformers generate", "ngram")).cases()  # one heat of ours
    assert [case.mode for case in mixed] == ["plain", "tree", "ngram", "transformers generate"]


@given(written=st.integers(0, 16), torn=st.integers(0, 40))
def test_a_killed_run_goes_on_behind_its_last_whole_row(tmp_path_factory, written, torn):
    path = tmp_path_factory.mktemp("bench") / "rows.jsonl"
    book, cases = Book(PLAN, MACHINE, path), PLAN.cases()
    for case in cases[:written]:
        book.add(made(case))
    whole = path.read_text()
    with path.open("a") as file:
        file.write(json.dumps(made(cases[-1]))[:torn])  # killed while writing
    again = Book(PLAN, MACHINE, path)
    assert again.rows == json.loads(json.dumps(book.rows))
    assert path.read_text() == whole
    assert [again.get(case.key) is not None for case in cases] == [i < written for i in range(len(cases))]


def test_what_a_resumed_run_compares_with_is_what_was_measured():
    case = PLAN.cases()[0]
    again = tally_of(json.loads(json.dumps(made(case))))
    other = tally(2.0)
    assert row(case, other, again, greedy=True, dtype="fp32")["speed_up"] == 2
    assert row(case, other, again, greedy=True, dtype="fp32")["lossless"] == "identical"
    differs = row(case, tally(2.0, ids=(5, 9, 7)), again, greedy=True, dtype="fp32")
    assert differs["lossless"] == "diverged"


@pytest.mark.parametrize(
    ("plan", "machine", "part"),
    [(Plan(PROMPTS, ("ngram",)), MACHINE, "plan"), (PLAN, {"processor": "two"}, "machine")],
)
def test_a_file_of_another_plan_or_machine_is_refused_and_left_as_it_was(tmp_path, plan, machine, part):
    path = tmp_path / "rows.jsonl"
    Book(PLAN, MACHINE, path).add(made(PLAN.cases()[0]))
    before = path.read_bytes()
    with pytest.raises(BenchError, match=f"begun with another {part}; choose another file"):
        Book(plan, machine, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["hello\n", "[]\n", '{"format": "other"}\n', '{"a": 1}\n{"b": 2}\n', "{}\nnull\n"])
def test_a_foreign_file_is_refused_and_left_as_it_was(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(BenchError):
        Book(PLAN, MACHINE, path)
    assert path.read_text() == text


def test_bad_lines_are_told_by_number_and_good_ones_kept():
    found, wrong = read_prompts('{"prompt": "one", "kind": "k", "id": "i"}\n\nnot json\n{"text": 1}\n{"prompt": " "}\n'
                                '{"prompt": 3}\n[1]\n{"prompt": "two"}\n', jsonl=True)  # fmt: skip
    assert found == [Prompt("i", "k", "one"), Prompt("line 8", "text", "two")]
    assert [words.partition(":")[0] for words in wrong] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert read_prompts("a b\n\n c \n", jsonl=False)[0] == [
        Prompt("line 1", "text", "a b"),
        Prompt("line 3", "text", " c "),
    ]


def test_prompts_with_one_name_stay_two_prompts_and_only_a_new_line_ends_one():
    found, wrong = read_prompts('{"id": 1, "prompt": "a\u2028b"}\r\n{"id": 1, "prompt": "c"}\n', jsonl=True)
    assert found == [Prompt("1", "text", "a\u2028b"), Prompt("1 (line 2)", "text", "c")] and wrong == []


def test_answers_are_counted_without_being_made():
    """A visitor's file of half a million lines made as many objects before it was refused."""
    many = Plan((Prompt("a", "k", "x"),) * 500_000, ("tree", "auto"), ("fp32", "bf16"), repeats=5)
    assert many.answers == 500_000 * 3 * 2 * 5
    few = Plan(PLAN.prompts[:1], ("tree", "transformers generate"), draft_lengths=(2, 4), repeats=2)
    assert few.answers == len(few.cases()) == (1 + 2 + 1) * 2


def test_a_plan_names_the_command_that_measures_it_again():
    asked = Plan(
        PLAN.prompts, ("tree",), ("fp32",), draft_lengths=(4, 8), settings={"max_new_tokens": 9, "draft": None}
    )
    assert asked.command("my file.txt") == (
        "python -m specdemo bench '--prompts=my file.txt' --modes=tree --dtypes=fp32 --quantizations=none "
        "--draft-lengths=4,8 --repeats=1 --max-new-tokens=9"
    )


def rows():
    latency = {("a", "tree"): 1.0, ("b", "tree"): 4.0}
    return [made(c, seconds=latency.get((c.prompt.id, c.mode))) for c in PLAN.cases()]


def test_averages_compare_each_prompt_with_its_own_plain_answer():
    found = {(entry["mode"], entry["draft_length"]): entry for entry in report.averages(rows())}
    assert set(found) == {("plain", None), ("tree", 4), ("tree", 8), ("transformers generate", None)}
    tree = found["tree", 8]
    assert tree["speed_up"] == pytest.approx(math.sqrt(4 * 1)) and tree["lowest"] == 1
    assert tree["latency_s"] == 2.5 and tree["kept"] == [1.0] and tree["draft_share"] == pytest.approx(0.1)
    assert tree["identical"] == tree["prompts"] == 2
    each = [r for r in rows() if r["mode"] == "tree" and r["draft_length"] == 8]
    assert tree["step_cost"] * tree["speed_up"] == pytest.approx(
        math.prod(r["tokens_per_step"] for r in each) ** (1 / len(each))
    )
    half = stats.t.ppf(0.975, 1) * math.log(4) / 2  # two prompts: the deviation over the root of two is half the range
    assert tree["speed_up_interval"] == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert tree["speed_up_surely"] == tree["speed_up_interval"][0]  # the other length is its one rival
    peer = found["transformers generate", None]
    assert peer["speed_up"] == pytest.approx(0.8) and peer["tokens_per_step"] is None and peer["kept"] == []


def test_the_interval_holds_the_truth_as_often_as_it_says_and_the_best_of_several_is_not_believed_too_easily():
    draws = np.exp(np.random.default_rng(0).normal(0.0, 0.12, (4000, 6, 5)))  # runs, useless settings, prompts
    found = [report._interval(ratios, report.LEVEL) for ratios in draws[:, 0]]
    assert np.mean([low <= 1 <= high for low, high in found]) == pytest.approx(0.95, abs=0.012)
    plan = Plan(tuple(Prompt(f"{i}", "code", "x") for i in range(5)), ("tree",), draft_lengths=tuple(range(2, 8)))
    wrong = 0
    for run in draws[:300]:
        rows = [
            made(case, seconds=4 / run[case.draft_length - 2, int(case.prompt.id)] if case.draft_length else 4.0)
            for case in plan.cases()
        ]
        wrong += advice(report.averages(rows))[0].startswith("fp32: speculate")
    assert 0 < wrong <= 25  # about 5% of 300


def test_repeats_count_as_their_median_and_kinds_are_kept_apart():
    slow = [made(c, seconds=100.0 if c.repeat == 2 else None) for c in Plan(PROMPTS, ("tree",), repeats=3).cases()]
    entries = report.averages([r for r in slow if r["mode"] == "tree"], by_kind=True)
    assert [(entry["kind"], entry["latency_s"], entry["prompts"]) for entry in entries] == [
        ("list", 2, 1),
        ("code", 2, 1),
    ]
    assert entries[0]["speed_up_interval"] is None


def test_auto_is_compared_in_each_heat_with_the_fixed_setting_that_is_fastest_on_that_kind():
    plan = Plan((*PROMPTS, Prompt("c", "code", "z")), ("tree", "auto", "ngram", "transformers generate"), repeats=3)
    fixed = {("list", "tree"): 2.0, ("list", "ngram"): 3.0, ("code", "tree"): 4.0, ("code", "ngram"): 2.5}
    slow = {0: 1.0, 1: 7.0, 2: 0.5}  # a moment of the machine: it hits all of a heat
    auto = {"a": 2.5, "b": 2.0, "c": 5.0}
    seconds = {
        case.key: slow[case.repeat] * fixed.get((case.prompt.kind, case.mode), auto[case.prompt.id])
        for case in plan.cases()
    }
    found = report.beside_fixed([made(case, seconds=seconds[case.key]) for case in plan.cases()])
    assert found == {f"{report.BESIDE} (fp32)": {
        "list": pytest.approx(2 / 2.5), "code": pytest.approx(2.5 / math.sqrt(2 * 5)),
    }}  # fmt: skip
    text = report.markdown([made(case, seconds=seconds[case.key]) for case in plan.cases()], MACHINE, "bench")
    assert "| auto over the best fixed setting (fp32) | 0.80 | 0.79 |" in text


@pytest.mark.parametrize("modes", [("auto",), ("tree", "ngram"), ("auto", "transformers generate")])
def test_without_auto_or_a_fixed_setting_nothing_is_compared(modes):
    assert report.beside_fixed([made(case) for case in Plan(PROMPTS, modes).cases()]) == {}


def test_answers_that_part_are_told_with_where_and_by_how_near_a_tie():
    cases = Plan(PROMPTS, ("tree",)).cases()
    found = [made(c, ids=(5, 9, 7) if c.mode == "tree" and c.prompt.id == "a" else (5, 6, 7)) for c in cases]
    assert [(r["lossless"], r["diverged_at"], r["margin"]) for r in found[1::2]] == [
        ("diverged", 1, 2.0),
        ("identical", None, None),
    ]
    tree = report.averages(found)[1]
    assert tree["identical"] == 1 and tree["margins"] == [2.0]
    assert dict(zip(report.AVERAGES, report.average_line(tree), strict=True))["parted at"] == "2.0000"


def test_the_report_holds_every_row_and_a_bar_in_a_name_breaks_no_table():
    plan = Plan((Prompt("a|b\n", "li|st", "x"),), ("tree",))
    text = report.markdown([made(c) for c in plan.cases()], MACHINE, "python -m specdemo bench")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    widths = {}
    for line in lines:
        widths.setdefault(line.replace("\\|", "").count("|"), []).append(line)
    assert "no verdict yet" in text and "a\\|b" in text and "25.09" in text and "processor: one" in text
    assert all(len(group) >= 3 for group in widths.values())


def test_csv_has_a_line_a_row_and_no_hidden_columns():
    import io

    import pandas as pd

    frame = pd.read_csv(io.StringIO(report.csv(rows())))
    assert len(frame) == 16 and "ids" not in frame and "ends" not in frame
    assert set(report.ROW) <= set(frame.columns)
    assert all("ids" not in one for one in results(rows()))
