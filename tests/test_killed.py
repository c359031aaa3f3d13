"""Killed in the midst of writing a trace, a cost table or a benchmark row: the next start reads what is there."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_trace import made

from specdemo.measure.results import Book, Plan, Prompt
from specdemo.measure.trace import read

ROOT = Path(__file__).parents[1]
KILLS = 4
PLAN = Plan((Prompt("a", "list", "x"),), ("tree",))

TRACES = """
from test_trace import made
from specdemo.measure.trace import write
from pathlib import Path
traces = [made(), made()]
traces[1].settings["prompt"] = "another " * 20_000
print("ready", flush=True)
while True:
    for trace in traces:
        write(trace, Path(FOLDER) / "race.json")
"""
COSTS = """
from pathlib import Path
from types import SimpleNamespace
from specdemo.models import costs as module
from specdemo.engine.auto import Costs
import torch
module.embedded.home = lambda: Path(FOLDER)
module.measure = lambda loaded: (Costs((0.123456789,) * 20_000), True)
pair, target = SimpleNamespace(target="x"), SimpleNamespace(device=torch.device("cpu"))
print("ready", flush=True)
while True:
    module.costs(SimpleNamespace(pair=pair, target=target, dtype="fp32", quantization="none"))
    for file in (Path(FOLDER) / "costs").glob("*.json"):
        file.unlink()
"""
ROWS = """
from pathlib import Path
from test_killed import PLAN
from specdemo.measure.results import Book
book = Book(PLAN, {}, Path(FOLDER) / "rows.jsonl")
print("ready", flush=True)
while True:
    book.add({"asked": ["a", len(book.rows)], "ids": list(range(20_000))})
"""


def killed(code: str, folder: Path, seconds: float) -> None:
    """Run `code` until it has said that it is ready and `seconds` are over, then kill it without a warning."""
    path = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'tests')]!r}; FOLDER = {str(folder)!r}\n"
    process = subprocess.Popen([sys.executable, "-c", path + code], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    time.sleep(seconds)
    process.kill()
    process.wait()


@pytest.fixture
def moments():
    chance = random.Random(0)
    return [chance.uniform(0.02, 0.3) for _ in range(KILLS)]


def test_a_trace_is_whole_or_as_it_was(tmp_path, moments):
    for seconds in moments:
        killed(TRACES, tmp_path, seconds)
        if (tmp_path / "race.json").exists():
            assert read(tmp_path / "race.json").settings["prompt"] in ("another " * 20_000, made().settings["prompt"])
    assert (tmp_path / "race.json").exists(), "it was always killed before it had written one"


def test_a_cost_table_is_whole_or_not_there(tmp_path, moments):
    for seconds in moments:
        killed(COSTS, tmp_path, seconds)
        for file in (tmp_path / "costs").glob("*.json"):
            assert len(json.loads(file.read_text())["verify"]) == 20_000


def test_a_benchmark_goes_on_behind_its_last_whole_row(tmp_path, moments):
    before = 0
    for seconds in moments:
        killed(ROWS, tmp_path, seconds)
        rows = Book(PLAN, {}, tmp_path / "rows.jsonl").rows
        assert [row["asked"] for row in rows] == [["a", i] for i in range(len(rows))]
        assert all(len(row["ids"]) == 20_000 for row in rows) and len(rows) >= before
        before = len(rows)
    assert before > KILLS
