"""`python -m specdemo bench`: prompts by modes by precisions, with peers, resumable."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from specdemo import options
from specdemo.config import NEEDS, SCORE, UNLIMITED
from specdemo.measure import results
from specdemo.measure.results import PLAIN, BenchError, Book, Plan, Prompt, is_peer, prompt_set, read_prompts, way
from specdemo.models.pairs import PAIRS

log = logging.getLogger(__name__)
Names = Annotated[str, typer.Option(help="By comma.")]


def bench(
    prompts: Annotated[str, typer.Option(help="article, own, or a .txt or .jsonl file.")] = "article",
    modes: Annotated[str, typer.Option(help="Modes by comma, with a length as chain:2; of transformers: generate, "
                                       "prompt lookup:N, assisted:N, behind `transformers `.")] = "tree,ngram,auto",
    pair: options.Pair = "embedded",
    target: options.Target = None,
    draft: options.Draft = None,
    dtypes: Names = "auto",
    quantizations: Annotated[
        str, typer.Option(help="By comma: none, nf4, int8; nf4:both for the draft as well.")
    ] = "none",
    draft_lengths: Annotated[
        str | None, typer.Option(help="By comma.", show_default="what suits each mode")
    ] = None,
    max_new_tokens: options.Tokens = 200,
    temperature: options.Temperature = 0.0,
    exact: options.Exact = False,
    seed: options.Seed = 42,
    chat_template: options.ChatTemplate = True,
    repeats: Annotated[int, typer.Option(min=1, help="Times that every answer is measured.")] = 1,
    every: Annotated[int, typer.Option(min=1, help="Take every n-th prompt only.")] = 1,
    peers: Annotated[bool, typer.Option("--peers", help="Measure transformers' own ways too.")] = False,
    out: Annotated[Path | None, typer.Option(help="Rows as they come; an unfinished file is gone on with.",
                                             show_default=False)] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this file.", show_default=False)] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a report to this file.", show_default=False)] = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Measure every prompt in every mode, beside plain decoding and, if asked, transformers' own ways."""
    from specdemo import device
    from specdemo.measure.machine import machine

    named = [*modes.split(","), *(results.peers(pair, target, draft) if peers else ())]
    settings = {"pair": pair, "target": target, "draft": draft, "max_new_tokens": max_new_tokens,
                "temperature": temperature, "exact": exact, "seed": seed, "chat_template": chat_template}  # fmt: skip
    try:
        plan = Plan(
            tuple(_prompts(prompts)[::every]),
            tuple(dict.fromkeys(map(_mode, named))),
            tuple(dict.fromkeys(dtypes.split(","))),
            tuple(dict.fromkeys(quantizations.split(","))),
            tuple(dict.fromkeys(options.numbers(draft_lengths, "draft lengths"))) if draft_lengths else (),
            repeats,
            settings,
        )
        for path in (csv, markdown):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        here = machine(device.pick())
        book = Book(plan, here, out)
        wrong, code = _measure(plan, book)
        if book.rows:
            _print(book.rows, here, as_json)
            _write(book.rows, here, csv, markdown)
    except (ValueError, OSError) as error:
        wrong, code = str(error), 2
    if code:
        print(f"specdemo: {wrong}", file=sys.stderr)
        raise typer.Exit(code)


def _measure(plan: Plan, book: Book) -> tuple[str, int]:
    """Run the plan with a progress bar; returns what ended it early, and the exit status."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from specdemo.bench import bench as measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Drawn after an answer only: a thread that draws meanwhile would do so on the clock of the path that runs.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("Measuring", total=plan.answers, completed=len(book.rows))
        try:
            for row in measure(plan, book, UNLIMITED, PAIRS, Event()):
                words = f"{row['prompt']}, {row['mode']}"[:40].ljust(40)
                bar.update(task, completed=len(book.rows), description=words, refresh=True)
        except KeyboardInterrupt:
            return "stopped; what was measured is kept", 130
        except ValueError as error:  # RequestError, BenchError
            return str(error), 2
        except Exception as error:  # memory that ran out in mid-answer, say: the answers before it are still good
            log.exception("a benchmark broke")
            return f"a way to answer broke: {type(error).__name__}: {error}", 1
    return "", 0


def _print(rows: list[Any], machine: dict[str, Any], as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from specdemo.measure import report
    from specdemo.measure.advisor import advice

    overall = report.averages(rows)
    if as_json:
        print(json.dumps({"rows": report.results(rows), "averages": overall, "advice": advice(overall),
                          "machine": machine}))  # fmt: skip
        return
    for entries, title in ((overall, "Averages"), (report.averages(rows, by_kind=True), "By kind of prompt")):
        table = Table(*(("kind",) if "kind" in entries[0] else ()), *report.AVERAGES, title=title, box=None)
        for entry in entries:
            kind = (entry["kind"],) if "kind" in entry else ()
            if not kind or entry["mode"] != PLAIN:
                table.add_row(*kind, *report.average_line(entry))
        Console(width=None if sys.stdout.isatty() else 240).print(table)
    for name, found in report.beside_fixed(rows).items():
        print(f"{name}: {', '.join(f'{kind} {ratio:.2f}' for kind, ratio in found.items())}")
    for line in advice(overall):
        print(line)


def _write(rows: list[Any], machine: dict[str, Any], csv: Path | None, markdown: Path | None) -> None:
    from specdemo.measure import report

    if csv is not None:
        csv.write_text(report.csv(rows))
    if markdown is not None:
        markdown.write_text(report.markdown(rows, machine, shlex.join(["python", "-m", "specdemo", *sys.argv[1:]])))


def _prompts(name: str) -> list[Prompt]:
    """A set by name, or a file. Lines that are no prompts are reported and left out."""
    if name in ("article", "own"):
        return prompt_set(name)
    path = Path(name)
    found, wrong = read_prompts(path.read_text(), path.suffix == ".jsonl")
    for words in wrong:
        print(f"specdemo: {path}, {words}; left out", file=sys.stderr)
    if not found:
        raise BenchError(f'{path} has no prompts; write one a line (.txt), or objects with a "prompt" (.jsonl)')
    return found


def _mode(name: str) -> str:
    if way(name)[0] not in NEEDS and not is_peer(name):
        raise BenchError(f"modes: there is no {name!r}; choose {', '.join(m for m in NEEDS if m != SCORE)}, {SCORE}, "
                         f"or one of transformers: {', '.join((*results.PEERS, *results.ASSISTED))}")  # fmt: skip
    return name
