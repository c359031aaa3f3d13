"""The command line, as a process."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdemo.measure.trace import read

pytestmark = pytest.mark.model
ROOT = Path(__file__).parents[1]


def specdemo(*arguments):
    command = [sys.executable, "-m", "specdemo", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_race_json_is_the_last_line_and_complete(tmp_path):
    trace = tmp_path / "deep" / "race.json"
    done = specdemo("race", "one two one two", "--max-new-tokens", 12, "--dtype", "fp32", "--json", "--trace", trace)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() == {
        "pair",
        "mode",
        "dtype",
        "quantization",
        "plain",
        "speculative",
        "speed_up",
        "failure",
        "lossless",
        "memory",
    }
    answer = {"text", "token_ids", "tokens", "latency_s", "ttft_s", "decode_tokens_per_s", "score"}
    assert result["plain"].keys() == answer
    assert result["speculative"].keys() == answer | {
        "steps", "drafted", "tested", "accepted", "acceptance_rate", "tokens_per_step", "draft_s", "verify_s",
        "rechecked", "origins",
    }  # fmt: skip
    assert result["lossless"] == {"verdict": "identical", "position": None, "margin": None}
    assert result["plain"]["token_ids"] == result["speculative"]["token_ids"]
    assert sum(result["speculative"]["origins"].values()) == result["speculative"]["tokens"]
    assert result["memory"].keys() == {
        "target_weights_mb", "draft_weights_mb", "plain_cache_mb", "speculative_cache_mb", "process_mb",
        "device_mb",
    }  # fmt: skip
    tallies = read(trace).tallies()
    assert tallies["speculative"].acceptance_rate == result["speculative"]["acceptance_rate"]
    assert tallies["plain"].latency_s == result["plain"]["latency_s"]


def test_race_shows_both_answers_and_the_verdict_and_no_control_characters():
    done = specdemo("race", "Say \x1b[31mred[/red] 🙂", "--max-new-tokens", 8, "--dtype", "fp32", "--no-chat-template")
    assert done.returncode == 0, done.stderr
    assert "plain" in done.stdout and "speculative" in done.stdout and "Identical" in done.stdout
    assert "\x1b[31m" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "prompt: is empty"),
        (["hello", "--mode", "magic"], "mode: "),
        (["hello", "--mode", "staged", "--target", "embedded"], "mode: staged needs a draft model"),
        (["hello", "--quantization", "int3"], "quantization: "),
        (["hello", "--double-quantization"], "double_quantization: only nf4"),
        (["hello", "--target", "/nowhere"], "cannot load '/nowhere'"),
        (["hello", "--stop", ""], "stop.0: "),
        (["hello", "--draft", "/nowhere", "--mode", "chain"], "cannot load '/nowhere'"),
        (["hello", "--max-new-tokens", 0], "max_new_tokens: "),
        (["hello", "--max-new-tokens", 9000], "leaves room for 0"),
        (["hello", "--pair", "none"], "pair: there is no 'none'"),
        (["hello", "--top-p", 0], "top_p: "),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_status_2(arguments, message):
    done = specdemo("race", *arguments)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_fetch_prints_where_the_weights_are():
    done = specdemo("fetch")
    assert done.returncode == 0
    assert (Path(done.stdout.strip()) / "model.safetensors").exists()


def test_a_table_is_counted_over_answers_and_says_where_it_comes_from(tmp_path):
    from safetensors import safe_open

    answers = tmp_path / "answers.jsonl"
    rows = [{"k": "any", "u": 2, "s": [5, 6, 7, 8, 7, 8, 7, 8, i], "g": True} for i in range(8)]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = specdemo("draft", "ngram", answers, "--out", tmp_path / "table.safetensors")
    assert done.returncode == 0, done.stderr
    with safe_open(tmp_path / "table.safetensors", "np") as file:
        assert file.metadata()["tokens"] == "56" and "Apache-2.0" in file.metadata()["license"]
        assert len(file.metadata()["answers_sha256"]) == 64
    done = specdemo("draft", "curve", answers, "--held-out", 2, "--nodes", "4,8")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 6, done.stderr


def test_what_the_drafters_bring_is_simulated_over_the_targets_own_answers(tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"kind": "list", "prompt": "Name four fruits."}) + "\n")
    done = specdemo("draft", "simulate", tmp_path / "p.jsonl", "--max-new-tokens", 16)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "tokens per step" in line]
    assert [line.split(":")[0] for line in lines] == ["ngram", "chain", "tree", "auto"]
    assert all(re.search(r"by kind: list \d+\.\d\d$", line) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "{broken}"], "line 1 is no object with kind, prompt"),
        (["simulate", "{empty}"], "is empty"),
        (["simulate", "{prompts}", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["simulate", "{prompts}", "--max-new-tokens", "9000"], "shorten one of them"),
        (["simulate", "{prompts}", "--row-cost", "-1"], "--row-cost"),
        (["ngram", "/nowhere.jsonl"], "does not exist"),
        (["ngram", "README.md"], "line 1 is not a row"),
        (["ngram", "README.md", "--order", "0"], "--order"),
        (["train", "README.md", "--epochs", "0"], "--epochs"),
        (["train", "README.md", "--held-out", "0"], "--held-out"),
        (["distil", "README.md", "--batch", "0"], "--batch"),
        (["eval", "{broken}"], "line 1: it has no prompt"),
        (["eval", "{prompts}", "--modes", "magic"], "modes: there is no 'magic'"),
        (["eval", "{prompts}", "--modes", "staged", "--draft", "/nowhere"], "cannot load '/nowhere'"),
        (["eval", "{prompts}", "--nodes", "0"], "whole numbers"),
    ],
)
def test_bad_input_to_the_draft_commands_is_refused_with_its_reason(arguments, message, tmp_path):
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"id": "a", "kind": "b", "prompt": "c"}) + "\n")
    (tmp_path / "broken.jsonl").write_text('{"text": 1}\n')
    (tmp_path / "empty.jsonl").touch()
    files = {name: tmp_path / f"{name}.jsonl" for name in ("prompts", "broken", "empty")}
    done = specdemo("draft", *(str(argument).format(**files) for argument in arguments))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert message in " ".join(done.stderr.replace("\u2502", " ").split())
