"""A race as the events that the page draws and the API streams: plain JSON objects, described in stage.js."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from specdemo.config import SCORE, Mode
from specdemo.engine.types import Finish, Origin, Step
from specdemo.measure.metrics import DEFINITIONS, Tally
from specdemo.measure.scoreboard import rows, sentence
from specdemo.ui.texts import text

if TYPE_CHECKING:
    from specdemo.run import Run

Event = dict[str, Any]


def opening(mode: object) -> Event:
    """What the stage shows before anything ran: titles, legend and an empty scoreboard. mode: as asked, unchecked."""
    origins = [origin for origin in Origin if (origin is Origin.UNVERIFIED) == (mode == SCORE)]
    by = f" · {text(f'mode_{mode}')}" if mode in get_args(Mode) else ""
    return {
        "labels": {"plain": text("plain"), "speculative": text("speculative") + by},
        "legend": {str(origin): text(f"by_{origin}") for origin in origins},
        "scoreboard": [
            {"key": row.key, "label": row.label, "definition": DEFINITIONS[row.key]} for row in rows(Tally(), Tally())
        ],
        "strings": {f"finish_{finish}": text(f"finish_{finish}") for finish in Finish},
    }


def start(mode: object) -> Event:
    return {"e": "start", **opening(mode)}


def status(words: str) -> Event:
    return {"e": "status", "text": words}


def error(words: str) -> Event:
    return {"e": "error", "text": words}


def step(run: Run, name: str, taken: Step) -> Event:
    """One step as it was committed; call it right after `run` yielded it."""
    tally, pieces = run.tallies[name], run.trace.pieces[name]
    tokens = zip(pieces[len(pieces) - len(taken.tokens) :], taken.tokens, strict=True)
    return {
        "e": "step",
        "side": name,
        "i": tally.steps,
        "at": tally.latency_s,
        "seconds": taken.seconds,
        "draft_s": taken.draft_s,
        "verify_s": taken.verify_s,
        "tokens": [{"text": piece, "origin": token.origin, "logprob": token.logprob} for piece, token in tokens],
        "nodes": [
            {
                "text": run.trace.vocabulary[node.id],
                "origin": node.origin,
                "parent": node.parent,
                "p": node.p,
                "q": node.q,
                "outcome": node.outcome,
            }
            for node in taken.nodes
        ],
    }


def figures(tallies: Mapping[str, Tally]) -> Event:
    """The scoreboard as it stands."""
    values = {
        row.key: {"joint": row.joint} if row.joint else {"plain": row.plain, "speculative": row.speculative}
        for row in rows(tallies["plain"], tallies["speculative"])
    }
    return {"e": "figures", "values": values}


def closing(run: Run) -> list[Event]:
    """Last figures, the losslessness verdict, and one sentence that sums the race up."""
    finish = {name: str(tally.finish or "cancelled") for name, tally in run.tallies.items()}
    if not any(tally.tokens for tally in run.tallies.values()):
        return [status(text("stopped_early")), {"e": "end", "finish": finish, "text": text("stopped_early")}]
    verdict = run.lossless
    words = sentence(verdict, run.loaded.dtype)
    return [
        figures(run.tallies),
        {"e": "verdict", "kind": verdict.verdict, "text": words},
        status(text("done")),
        {"e": "end", "finish": finish, "text": f"{_summary(run)} {words}"},
    ]


def _summary(run: Run) -> str:
    ratio = run.speed_up
    if ratio is None:
        return text("stopped")
    per_step = run.tallies["speculative"].tokens_per_step
    stopped = text("stopped") + " " if any(tally.finish is None for tally in run.tallies.values()) else ""
    if ratio >= 1:
        return f"{stopped}Speculative decoding was {ratio:.2f} times as fast here, {per_step:.2f} tokens per step."
    return (
        f"{stopped}Speculative decoding was slower here ({ratio:.2f}×): {per_step:.2f} tokens per step do not pay for "
        "what drafting and the longer target passes cost."
    )
