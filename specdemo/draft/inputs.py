"""What the draft commands read: answers, prompts, the target; each refused with its reason where it is not usable."""

import gzip
import json
import random
import shlex
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import typer


def rows(answers: list[Path]) -> list[Any]:
    """All rows of the files; a file that is not one of answers is refused."""
    from specdemo.draft.answers import read

    try:
        return [row for path in answers for row in read(path)]
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error


def prompts(path: Path, *keys: str) -> list[dict[str, str]]:
    """The lines of a .jsonl file, each an object with `keys`."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append({key: str(json.loads(line)[key]) for key in keys})
        except (ValueError, KeyError, TypeError) as error:
            raise typer.BadParameter(f"{path}, line {number} is no object with {', '.join(keys)}: {error!r}") from error
    if not found:
        raise typer.BadParameter(f"{path} is empty; give an object with {', '.join(keys)} in each line")
    return found


def task(loaded: Any, prompt: str, max_new_tokens: int) -> Any:
    """A greedy answer to be given. Refused where it does not fit into the context."""
    from specdemo.engine.types import Task
    from specdemo.text import encode

    ids, context = tuple(encode(loaded.tokenizer, prompt, chat=True)), loaded.context
    if len(ids) + max_new_tokens > context:
        raise typer.BadParameter(
            f"{prompt[:40]!r} has {len(ids)} tokens; with {max_new_tokens} new ones that is more than the {context} of "
            "the model's context: shorten one of them"
        )
    return Task(ids, max_new_tokens, eos=loaded.eos)


def bare() -> Any:
    """The embedded target in float32, without what is made here."""
    return pair(draft=None, ngram=None, head=None)


def pair(**without: Any) -> Any:
    """The embedded pair in float32, `without` some of its parts."""
    from specdemo.models.load import load
    from specdemo.models.pairs import PAIRS
    from specdemo.request import RequestError

    try:
        return load(replace(PAIRS["embedded"], **without), "fp32")
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error


def split(loaded: Any, answers: list[Path], held_out: int, seed: int) -> tuple[list[Any], list[Any]]:
    """All samples of the answers in random order, and those that are only looked at."""
    import torch

    from specdemo.draft.answers import opening_of
    from specdemo.draft.samples import samples
    from specdemo.engine.cache import CachedModel

    opening, _ = opening_of(loaded.tokenizer)
    cached = CachedModel(loaded.target, keep_states=True)
    with torch.inference_mode():
        cached.forward(opening)
    states = cached.states.half().clone()
    try:
        data = [sample for path in answers for sample in samples(path, opening, states)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if len(data) <= held_out:
        raise typer.BadParameter(
            f"the answers are {len(data)} sequences, and {held_out} are held out: give more, or a lower --held-out"
        )
    random.Random(seed).shuffle(data)
    return data[held_out:], data[:held_out]


def provenance(answers: list[Path], **options: Any) -> dict[str, str]:
    """What a file of weights says about where it comes from. options: of its command, given or by default."""
    digest = sha256()
    for path in answers:
        digest.update(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return {
        "license": "Apache-2.0; derived from SmolLM2-135M-Instruct (Apache-2.0)",
        "answers_sha256": digest.hexdigest(),
        "command": shlex.join(["python", "-m", "specdemo", *sys.argv[1:]]),
    } | {name: str(value) for name, value in options.items()}


def checkpoint(out: Path, made: dict[str, str]) -> Any:
    """Where a run that makes `out` stands; one that was begun with other answers or options is refused."""
    from specdemo.draft.optimize import Checkpoint

    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Checkpoint(out.with_suffix(".training"), {name: made[name] for name in made if name != "command"})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
