"""What the draft commands read: answers, prompts, the target; each refused with its reason where it is not usable."""

import gzip
import json
import random
import shlex
import sys
from dataclasses import asdict, replace
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
    return found


def bare() -> Any:
    """The embedded target in float32, without what is made here."""
    from specdemo.models.load import load
    from specdemo.models.pairs import PAIRS
    from specdemo.request import RequestError

    try:
        return load(replace(PAIRS["embedded"], draft=None, ngram=None, head=None), "fp32")
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
    random.Random(seed).shuffle(data)
    return data[held_out:], data[:held_out]


def provenance(answers: list[Path]) -> dict[str, str]:
    """What a file of weights says about where it comes from."""
    digest = sha256()
    for path in answers:
        digest.update(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return {
        "license": "Apache-2.0; derived from SmolLM2-135M-Instruct (Apache-2.0)",
        "answers_sha256": digest.hexdigest(),
        "command": shlex.join(["python", "-m", "specdemo", *sys.argv[1:]]),
    }


def checkpoint(out: Path, schedule: Any, made: dict[str, str], **options: Any) -> Any:
    """Where a run that makes `out` stands; one that was begun with other answers or options is refused."""
    from specdemo.draft.optimize import Checkpoint

    run = made | {name: str(value) for name, value in (asdict(schedule) | options).items()}
    del run["command"]
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Checkpoint(out.with_suffix(".training"), run)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
