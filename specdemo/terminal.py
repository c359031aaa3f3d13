"""A race in the terminal: both answers side by side, tokens coloured by origin, the scoreboard below."""

from collections.abc import Iterable
from time import monotonic

from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specdemo.engine.types import Finish, Origin
from specdemo.measure.scoreboard import rows, sentence
from specdemo.run import PATHS, Run

FRAME_S = 0.125  # seconds between two pictures

# Colour and a second cue, so that the origins can be told apart without colour.
STYLES = {
    Origin.TARGET: "",
    Origin.DRAFT: "green underline",
    Origin.NGRAM: "magenta italic underline",
    Origin.UNVERIFIED: "dim",
}


def show(run: Run) -> None:
    """Run the race to its end and draw it as it goes."""
    answers = {name: Text() for name in PATHS}
    drawn = 0.0
    # Drawn between steps: a thread that draws meanwhile would do so on the clock of the path that runs.
    with Live(auto_refresh=False) as live:
        for name, step in run:
            pieces = run.trace.pieces[name][-len(step.tokens) :] if step.tokens else []
            for piece, token in zip(pieces, step.tokens, strict=True):
                # A model's text is drawn as it is: no markup, and no control character that moves the cursor.
                answers[name].append(_visible(piece), STYLES[token.origin] if name == "speculative" else "")
            if step.finish is Finish.FAILED:
                answers[name].append(f"\nThis path broke: {_visible(step.note or '')}", "bold red")
            if monotonic() - drawn > FRAME_S:
                live.update(_picture(run, answers), refresh=True)
                drawn = monotonic()
        live.update(_picture(run, answers), refresh=True)


def _picture(run: Run, answers: dict[str, Text]) -> Group:
    panes = Columns([Panel(answers[name], title=name, width=58) for name in PATHS])
    table = Table("figure", *PATHS, box=None, pad_edge=False)
    for row in rows(run.tallies["plain"], run.tallies["speculative"], run.trace.models):
        table.add_row(row.label, row.plain, row.joint or row.speculative)
    return Group(
        panes,
        _legend(run.tallies["speculative"].origins),
        table,
        Text(sentence(run.lossless, run.loaded.dtype, run.loaded.quantization.kind)),
    )


def _legend(origins: Iterable[Origin]) -> Text:
    parts: Iterable[tuple[str, str]] = [(f" {origin} ", STYLES[origin]) for origin in origins]
    return Text.assemble("speculative tokens by origin: ", *parts)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
