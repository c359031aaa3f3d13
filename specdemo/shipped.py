"""The recorded races that come with the demo, and how they are recorded again: `python -m specdemo record`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "traces"

# What each shows, the usual first: an open text is hard to draft, one of the article's five prompts is continued, a
# sampled race is checked by its distribution and not by its ids, and a text that repeats itself drafts very well.
RACES: Mapping[str, Mapping[str, Any]] = {
    "open": {"prompt": "Describe what a lighthouse keeper sees, hears and feels during a storm at night."},
    "article": {"prompt": "Machine learning is transforming the world by ", "chat_template": False},
    "sampled": {
        "prompt": "Invent a recipe for a soup of winter vegetables.",
        "temperature": 0.8,
        "top_p": 0.95,
        "seed": 7,
    },
    "refrain": {"prompt": "Write a poem in which every line begins with the words: In the morning I"},
}
TOKENS = 96


def path(name: str) -> Path:
    """Where the race `name` is kept."""
    return FOLDER / f"{name}.json.gz"


def names() -> list[str]:
    """The races that are there, in the order of RACES."""
    return [name for name in RACES if path(name).exists()]


def record(name: str) -> dict[str, Any]:
    """Run the race `name` on this machine, keep its trace, and return its outcome as run.Run.result does.

    Raises KeyError for an unknown name.
    """
    from threading import Event

    from specdemo.measure.trace import write
    from specdemo.request import RaceRequest
    from specdemo.run import Run, load_for

    request = RaceRequest(**{"max_new_tokens": TOKENS} | dict(RACES[name]))
    run = Run(request, load_for(request), Event())
    for _ in run:
        pass
    write(run.trace, path(name))
    return run.result()
