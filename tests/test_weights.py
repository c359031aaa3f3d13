"""The weights in the repository are small, and say where they come from: which answers, by which command."""

import gzip
from hashlib import sha256
from inspect import signature
from pathlib import Path

import pytest
from safetensors import safe_open

from specdemo.draft import commands
from specdemo.models.pairs import WEIGHTS

ANSWERS = Path("data/answers.jsonl.gz")
FILES = {"ngram": "embedded-ngram", "train": "embedded-head", "distil": "embedded-draft"}


@pytest.mark.parametrize("command", FILES)
def test_each_was_made_of_the_answers_that_lie_beside_it_by_the_command_it_names(command):
    with safe_open(WEIGHTS / f"{FILES[command]}.safetensors", "np") as file:
        told = file.metadata()
    assert told["command"].split()[:5] == ["python", "-m", "specdemo", "draft", command]
    assert told["command"].split()[5:] == [str(ANSWERS)]
    assert told["answers_sha256"] == sha256(gzip.decompress(ANSWERS.read_bytes())).hexdigest()
    assert "Apache-2.0" in told["license"]


@pytest.mark.parametrize("command", FILES)
def test_the_commands_defaults_are_those_that_made_them(command):
    with safe_open(WEIGHTS / f"{FILES[command]}.safetensors", "np") as file:
        told = file.metadata()
    options = signature(getattr(commands, command)).parameters
    assert {name: told[name] for name in options if name not in ("answers", "out")} == {
        name: str(option.default) for name, option in options.items() if name not in ("answers", "out")
    }


def test_together_they_are_at_most_40_mb():
    found = list(WEIGHTS.glob("*.safetensors"))
    assert {file.name for file in found} == {f"{name}.safetensors" for name in FILES.values()}
    assert sum(file.stat().st_size for file in found) <= 40e6
