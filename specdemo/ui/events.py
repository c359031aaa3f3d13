"""A race as the events that the page draws and the API streams: plain JSON objects, described in stage.js."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from specdemo.config import SCORE, Mode
from specdemo.engine.types import Finish, Origin, Step
from specdemo.measure.metrics import DEFINITIONS, Tally
from specdemo.measure.recording import Recording
from specdemo.measure.scoreboard import rows, sentence
from specdemo.measure.trace import Trace
from specdemo.ui.texts import text

Event = dict[str, Any]
ABOUT = 500  # characters of a prompt or name in a replay's head


def opening(mode: object) -> Event:
    """What the stage shows before anything ran: titles, legend and an empty scoreboard. mode: as asked, unchecked."""
    origins = [origin for origin in Origin if (origin is Origin.UNVERIFIED) == (mode == SCORE)]
    by = f" · {text(f'short_{mode}')}" if mode in get_args(Mode) else ""
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


def restart(trace: Trace) -> Event:
    """The start of a replay, which says what was recorded, with what, and where."""
    event = start(trace.settings["mode"])
    event["strings"]["running"] = text("recorded")
    return event | {"about": _about(trace)}


def _about(trace: Trace) -> list[dict[str, str]]:
    settings, machine = trace.settings, trace.machine
    sampled = [f"{text(name)} {settings[name]:g}" for name in ("temperature", "top_p", "top_k")] + [
        f"{text('seed')} {settings['seed']}"
    ]
    how = [
        trace.models["pair"],
        settings["dtype"],
        *_quantized(settings),
        *(sampled if settings["temperature"] else [text("greedy")]),
        f"{text('draft_length')} {settings['draft_length']}",
    ]
    if settings.get("repetition_penalty", 1) != 1:
        how.append(f"{text('repetition_penalty')} {settings['repetition_penalty']:g}")
    if settings.get("exact"):
        how.append(text("exact"))
    where = [machine.get("accelerator"), machine.get("processor")]
    if machine.get("threads") is not None:
        where.append(f"{machine['threads']} {text('thread' if machine['threads'] == 1 else 'threads')}")
    where += [f"{name} {machine[name]}" for name in ("torch", "specdemo") if machine.get(name) is not None]
    values = {
        "prompt": settings["prompt"],
        "recorded_with": " · ".join(how),
        "recorded_on": " · ".join(str(part) for part in where if part is not None),
    }
    return [{"name": text(key), "value": shorten(value, ABOUT)} for key, value in values.items() if value]


def _quantized(settings: Mapping[str, Any]) -> list[str]:
    """What the weights of a recorded race were quantized to, if they were."""
    kind = settings.get("quantization", "none")
    if kind == "none":
        return []
    both = f" ({text('quantize_both')})" if settings.get("quantize") == "both" else ""
    return [f"{kind}{both}"]


def shorten(words: str, most: int) -> str:
    """The words, cut where they are more than `most` characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def status(words: str) -> Event:
    return {"e": "status", "text": words}


def error(words: str) -> Event:
    return {"e": "error", "text": words}


def taken(recording: Recording, name: str, step: Step) -> list[Event]:
    """What there is to show of a step; call it right after `recording` took it. Part of a prefill shows nothing."""
    shown = [_step(recording, name, step)] if step.tokens else []
    return [*shown, failure(name, step.note or "")] if step.finish is Finish.FAILED else shown


def failure(name: str, reason: str) -> Event:
    """A path broke, and the other goes on."""
    return {"e": "failure", "side": name, "text": text("path_failed").format(reason=reason)}


def _step(recording: Recording, name: str, taken: Step) -> Event:
    tally = recording.tallies[name]
    tokens = zip(recording.pieces(name, taken), taken.tokens, strict=True)
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
                "text": recording.trace.vocabulary[node.id],
                "origin": node.origin,
                "parent": node.parent,
                "p": node.p,
                "q": node.q,
                "outcome": node.outcome,
            }
            for node in taken.nodes
        ],
    }


def figures(recording: Recording) -> Event:
    """The scoreboard as it stands."""
    tallies = recording.tallies
    values = {
        row.key: {"joint": row.joint} if row.joint else {"plain": row.plain, "speculative": row.speculative}
        for row in rows(tallies["plain"], tallies["speculative"], recording.trace.models)
    }
    return {"e": "figures", "values": values}


def closing(recording: Recording) -> list[Event]:
    """Last figures, the losslessness verdict, and one sentence that sums the race up."""
    finish = {name: str(tally.finish or "cancelled") for name, tally in recording.tallies.items()}
    if not any(tally.tokens for tally in recording.tallies.values()):
        return [status(text("stopped_early")), {"e": "end", "finish": finish, "text": text("stopped_early")}]
    verdict = recording.lossless
    settings = recording.trace.settings
    words = sentence(verdict, settings["dtype"], str(settings.get("quantization", "none")))
    cut = any(tally.finish is None for tally in recording.tallies.values())
    return [
        figures(recording),
        {"e": "verdict", "kind": verdict.verdict, "text": words},
        status(text("stopped" if cut else "done")),
        {"e": "end", "finish": finish, "text": f"{_summary(recording)} {words}"},
    ]


def _summary(recording: Recording) -> str:
    ratio = recording.speed_up
    failed = [name for name, tally in recording.tallies.items() if tally.finish == Finish.FAILED]
    if failed:
        return text("failed_both") if len(failed) > 1 else text(f"failed_{failed[0]}")
    if ratio is None:
        return text("stopped")
    theirs = recording.tallies["speculative"]
    per_step = theirs.tokens_per_step
    stopped = text("stopped") + " " if any(tally.finish is None for tally in recording.tallies.values()) else ""
    if recording.trace.settings["mode"] == SCORE:
        return f"{stopped}The draft's own text took 1/{ratio:.2f} of the time of the target's."
    again = f" Passes made again for near-ties: {theirs.rechecked}." if theirs.rechecked else ""
    if ratio >= 1:
        said = f"Speculative decoding was {ratio:.2f} times as fast here, {per_step:.2f} tokens per step."
    else:
        said = (
            f"Speculative decoding was slower here ({ratio:.2f}×): {per_step:.2f} tokens per step do not pay for what "
            "drafting and the longer target passes cost."
        )
    return stopped + said + again
