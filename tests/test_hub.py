"""What the preflight asks of the hub, and what it says when the hub refuses: against a stand-in on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub import Hub
from huggingface_hub import constants
from tiny import CONFIGS, folder, tokenizer

from specdemo.models.files import SMALL_FILES, LoadError
from specdemo.models.load import load
from specdemo.models.pairs import Pair
from specdemo.models.preflight import preflight

ROOT = Path(__file__).parents[1]
SECRET = "hf_secretsecretsecret"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with Hub().served() as hub:
        name = folder(tmp_path / "model", CONFIGS["llama"](), tokenizer([f"w{i}" for i in range(32)]))
        (Path(name) / "model.safetensors").write_bytes(b"weights")
        (Path(name) / "pytorch_model.bin").write_bytes(b"weights")
        hub.models["some/model"] = Path(name)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


def look(name):
    return preflight(Pair("tried", "", name, name), "fp32")


def test_only_small_files_are_asked_for(hub):
    report = look("some/model")
    assert report.refusal is None, report.refusal
    files = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert {"config.json", "tokenizer.json"} <= files <= set(SMALL_FILES)


def test_what_was_fetched_once_needs_no_network(hub, monkeypatch):
    assert look("some/model").refusal is None
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert look("some/model").refusal is None


def test_a_gated_model_without_a_token_names_the_page_and_the_variable(hub):
    hub.status["some/model"] = "gated"
    refusal = look("some/model").refusal
    assert refusal == (
        f"cannot load 'some/model': it is gated: accept its licence at {hub.url}/some/model, then put an access token "
        "in the environment variable HF_TOKEN"
    )


def test_a_gated_model_with_a_token_without_access_asks_for_the_licence_and_shows_no_token(hub, monkeypatch):
    hub.status["some/model"] = "gated"
    monkeypatch.setenv("HF_TOKEN", "stranger")
    refusal = look("some/model").refusal or ""
    assert f"accept its licence at {hub.url}/some/model" in refusal and "no access yet" in refusal
    assert "stranger" in hub.tokens and "stranger" not in refusal
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert look("some/model").refusal is None


@pytest.mark.parametrize(
    ("status", "token", "said"),
    [
        (404, None, "the hub has no such model"),
        (401, None, "the hub has no such model"),
        (401, SECRET, "does not accept your token (401)"),
        (403, SECRET, "does not accept your token (403)"),
        (500, None, "status 500"),
        (429, None, "status 429"),
    ],
)
def test_each_answer_of_the_hub_is_a_sentence_of_its_own(hub, monkeypatch, status, token, said):
    hub.status["some/model"] = status
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refusal = look("some/model").refusal or ""
    assert said in refusal and SECRET not in refusal and "\n" not in refusal


def test_an_unknown_id_and_an_impossible_one(hub):
    assert "check the spelling" in (look("some/typo").refusal or "")
    assert "owner/name" in (look("a/b/c/d").refusal or "")


def test_no_network_and_offline_are_told_apart(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "(http://127.0.0.1:9) cannot be reached" in (look("some/model").refusal or "")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids" in (look("some/model").refusal or "")


def test_a_hub_that_says_nothing_is_given_up_on(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
    hub.silent.set()
    assert "cannot be reached" in (look("some/model").refusal or "")


def test_broken_weights_are_told_in_one_line(hub):
    with pytest.raises(LoadError, match="cannot load 'some/model'") as caught:
        load(Pair("tried", "", "some/model"), "fp32")
    assert "\n" not in str(caught.value)


def test_a_broken_config_on_the_hub_is_told(hub):
    (hub.models["some/model"] / "config.json").write_text("{")
    assert "its config.json is broken" in (look("some/model").refusal or "")


def test_a_pair_that_cannot_work_is_refused_before_its_weights_are_asked_for(hub, tmp_path):
    words = [*(f"w{i}" for i in range(31)), "other"]
    hub.models["some/draft"] = Path(folder(tmp_path / "draft", CONFIGS["llama"](), tokenizer(words)))
    with pytest.raises(LoadError, match="id 31 is 'other' in the draft"):
        load(Pair("tried", "", "some/model", "some/draft"), "fp32")
    assert not [path for path in hub.asked if path.endswith((".safetensors", ".bin"))]


def test_the_command_reads_the_environment_and_refuses_in_one_line(hub, tmp_path):
    hub.status["some/model"] = "gated"
    command = [sys.executable, "-m", "specdemo", "preflight", "--target", "some/model", "--json"]
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "stranger"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"{hub.url}/some/model" in done.stderr and "stranger" not in done.stderr + done.stdout
