"""Scripted runs for the stage: what its log looks like when a race goes well, is long, fails, or is hostile."""

import time
from threading import Event

from specdemo.ui.stage import line

OPENING = {
    "labels": {"plain": "Plain", "speculative": "Speculative (n-gram lookup)"},
    "scoreboard": [
        {"key": "decode", "label": "decode tokens/s", "definition": "Committed tokens per own-clock second."},
        {"key": "speed_up", "label": "speed-up", "definition": "Plain latency over speculative latency."},
    ],
    "legend": {"draft": "draft model", "ngram": "n-gram", "target": "target"},
}
HOSTILE = [
    "${alert(1)}",
    "{{value}}",
    "`${window.hacked=1}`",
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "\\u0041",
    "line\nbreak",
    "\"double\" & 'single'",
    '__i18n__{"key":"common.submit"}',
    "&lt;b&gt;",
    "a\u2028b",
    "\u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c",
    "\x00\x07\x1b[31m\x7f",
    "trailing ",
]


def token(text: str, origin: str = "target") -> dict:
    return {"text": text, "origin": origin, "logprob": -0.125}


def node(text: str, origin: str, outcome: str, p: float | None = 0.25, q: float | None = 0.5) -> dict:
    return {"text": text, "origin": origin, "p": p, "q": q, "outcome": outcome}


def step(path: str, i: int, tokens: list, nodes: list | None = None) -> str:
    times = {"at": 1.5 + i, "seconds": 0.1, "draft_s": 0.0, "verify_s": 0.08}
    if path == "speculative":
        times = {"at": 0.5 + i, "seconds": 0.12, "draft_s": 0.02, "verify_s": 0.09}
    return line({"e": "step", "side": path, "i": i, **times, "tokens": tokens, "nodes": nodes or []})


def start(**changes) -> str:
    return line({"e": "start", **OPENING, **changes})


def finish(text: str = "The speculative path was faster.") -> str:
    return line({"e": "end", "finish": {"plain": "length", "speculative": "eos"}, "text": text})


FIRST = step(
    "speculative",
    7,
    [token(" quick", "draft"), token(" brown", "ngram"), token(" fox")],
    [
        node(" quick", "draft", "accepted", p=0.75, q=0.625),
        node(" brown", "ngram", "accepted", q=None),
        node(" dog", "draft", "rejected", p=0.0625),
        node(" ran", "draft", "untested", p=None),
    ],
)
RACE = [
    start(),
    step("plain", 0, [token("The")]),
    step("plain", 1, [token(" quick")]) + FIRST,
    line({"e": "status", "text": "Racing"}),
    line({"e": "figures", "values": {"decode": {"plain": "15.2", "speculative": "24.1"}}}),
    line({"e": "figures", "values": {"speed_up": {"joint": "1.58\u00d7"}}}),
    line({"e": "verdict", "kind": "identical", "text": "Identical: 3 ids are equal"}) + finish(),
]
AGAIN = [start(), step("speculative", 0, [token("Again", "draft")]), finish("The second run.")]
LONG = [start()] + [
    step("plain", i, [token(f" plain word {i}")])
    + step("speculative", i, [token(f" drafted word {i}", "draft"), token(f" own word {i}")])
    for i in range(40)
]
GO = Event()  # as a frame: the run rests here until the test sets it
EMOJI = [step("speculative", 99, [token("", "draft"), token("", "draft"), token("", "draft"), token("\U0001f642")])]


def hostile_frames() -> list[str]:
    """Every hostile text in every place where the stage shows text."""
    frames = []
    for text in HOSTILE:
        rows = [{"key": text, "label": text, "definition": text}]
        labels = {"plain": text, "speculative": text}
        frames += [
            start(labels=labels, scoreboard=rows, legend={"draft": text, "ngram": text, "target": text})
            + step("plain", 0, [token(text)])
            + step("speculative", 0, [token(text, "draft")], [node(text, "draft", "rejected")])
            + line({"e": "figures", "values": {text: {"plain": text, "speculative": text}}})
            + line({"e": "verdict", "kind": text, "text": text})
            + line({"e": "failure", "side": "speculative", "text": text})
            + line({"e": "error", "text": text})
            + finish(text)
        ]
    return frames


RUNS = {
    "race": (RACE, 0.0),
    "again": (AGAIN, 0.0),
    "twice": (RACE + AGAIN, 0.0),
    "emoji": ([start(), *EMOJI, finish()], 0.0),
    "paced": (LONG + [finish()], 0.05),
    "held": ([*LONG[:31], GO, *LONG[31:], finish()], 0.01),
    "broken": (
        [
            start(),
            step("plain", 0, [token("The")]) + step("speculative", 0, [token("The")]),
            line({"e": "failure", "side": "speculative", "text": "This path broke: out of memory."}),
            step("plain", 1, [token(" quick")]),
            line({"e": "end", "finish": {"plain": "length", "speculative": "failed"}, "text": "One path broke."}),
        ],
        1.0,
    ),
    "failed": ([start(), line({"e": "error", "text": "The prompt is too long: shorten it."})], 0.0),
}
RUNS |= {f"hostile{at}": ([frame], 0.0) for at, frame in enumerate(hostile_frames())}


def runner(frames: list[str | Event], pause: float):
    def run():
        log = ""
        for frame in frames:
            if isinstance(frame, Event):
                assert frame.wait(60), "nobody let the run go on"
                frame.clear()
                continue
            log += frame
            yield log
            time.sleep(pause)

    return run
