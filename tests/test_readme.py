"""The README's figures are what `make bench` wrote last."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_reports():
    report = (ROOT / "docs" / "benchmark.md").read_text()
    table = report.split("## Averages\n\n")[1].split("\n\n")[0]
    assert len(table.splitlines()) > 5 and table in (ROOT / "README.md").read_text()


def test_the_report_comes_from_the_command_that_make_bench_runs():
    command = (ROOT / "docs" / "benchmark.md").read_text().split("`")[1].removeprefix("python ")
    assert f"$(PY) {command}\n" in (ROOT / "Makefile").read_text()
