"""What a page on the open network must not do: load what is not listed, run strangers' code, show a secret."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from serving import served

from specdemo import run as running
from specdemo.config import Settings, read
from specdemo.models import load, pairs
from specdemo.models.load import LoadError
from specdemo.request import RaceRequest

ROOT = Path(__file__).parents[1]
GOOD = {"prompt": "Name the days of the week.", "mode": "ngram", "dtype": "fp32", "max_new_tokens": 8}
SECRET = "hf_" + "thesecretofthespace"
START_S = 120

pytestmark = pytest.mark.model

# What a stranger may write where a pair belongs.
OTHERS = [
    "unlisted",
    "openai-community/gpt2",
    "hf://datasets/a/b",
    "../embedded",
    "/etc",
    str(ROOT),
    "Embedded",
    "",
    "e" * 9999,
]


@pytest.fixture(scope="module")
def listed_and_not():
    """A page that lists one of the two pairs of the table."""
    patch = pytest.MonkeyPatch()
    patch.setitem(pairs.PAIRS, "unlisted", replace(pairs.PAIRS["embedded"], name="unlisted"))
    with served(Settings(pairs=["embedded"])) as address:
        yield Client(address, verbose=False, analytics_enabled=False)
    patch.undo()


def raced(client: Client, endpoint: str, **changes) -> str:
    """The words of a refusal, by either endpoint; "" where the race took place."""
    values = GOOD | changes
    if endpoint == "/race":
        last = json.loads(list(client.submit(api_name="/race", **values))[-1].splitlines()[-1])
        return last["text"] if last["e"] == "error" else ""
    try:
        client.predict(api_name="/race_once", **values)
    except AppError as refusal:
        return str(refusal)
    return ""


# --- what can be loaded --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["/race", "/race_once"])
@pytest.mark.parametrize("pair", OTHERS, ids=lambda pair: pair[:20] or "nothing")
def test_only_a_listed_pair_is_loaded(listed_and_not, monkeypatch, endpoint, pair):
    asked = []
    monkeypatch.setattr(running, "load_for", lambda request: asked.append(request.pair))
    message = raced(listed_and_not, endpoint, pair=pair)
    assert (
        message.startswith("pair: there is no ") and message.endswith("choose one of embedded") and len(message) < 200
    )
    assert asked == []


def test_no_endpoint_takes_a_models_name(listed_and_not):
    told = listed_and_not.view_api(return_format="dict", print_info=False)
    assert set(told["named_endpoints"]) == {"/race", "/race_once", "/benchmark"} and told["unnamed_endpoints"] == {}
    taken = {
        name: {parameter["parameter_name"] for parameter in endpoint["parameters"]}
        for name, endpoint in told["named_endpoints"].items()
    }
    for name in ("/race", "/race_once"):
        assert taken[name] == set(RaceRequest.model_fields) - {"target", "draft"}
    assert not taken["/benchmark"] & {"target", "draft"}


@pytest.mark.parametrize("endpoint", ["/race", "/race_once"])
@pytest.mark.parametrize("field", ["draft", "target"])
def test_a_model_that_is_named_all_the_same_is_not_loaded(listed_and_not, monkeypatch, endpoint, field):
    asked = []
    monkeypatch.setattr(running, "load_for", lambda request: asked.append(getattr(request, field)))
    address = f"{listed_and_not.src.rstrip('/')}/gradio_api/call/v2{endpoint}"
    made = httpx.post(address, json=GOOD | {"mode": "chain", field: "openai-community/gpt2"})
    if made.status_code == 200:  # Gradio drops what it does not know
        event = made.json()["event_id"]
        httpx.get(f"{listed_and_not.src.rstrip('/')}/gradio_api/call{endpoint}/{event}", timeout=60)
    assert [name for name in asked if name] == []


def test_the_limits_of_the_config_hold_for_both_endpoints(listed_and_not):
    limits = read().limits
    for field, value in [
        ("max_new_tokens", limits.max_new_tokens + 1),
        ("draft_length", limits.max_draft_length + 1),
        ("prompt", "a" * (limits.max_prompt_characters + 1)),
    ]:
        for endpoint in ("/race", "/race_once"):
            assert raced(listed_and_not, endpoint, **{field: value}).startswith(f"{field}: ")


def test_code_that_comes_with_a_model_is_not_run(tmp_path, monkeypatch):
    """Regression: left unsaid, transformers asks on the terminal whether it may."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    maps = {
        "AutoConfig": "strange.Config",
        "AutoModelForCausalLM": "strange.Model",
        "AutoTokenizer": [None, "strange.T"],
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "strange", "auto_map": maps}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T", "auto_map": maps}))
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    for loading in (load.unpacked, load.tokenizer_of):
        with pytest.raises(LoadError, match="cannot load"):
            loading(str(tmp_path))
    assert not (tmp_path / "ran").exists()


# --- what is shown -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """(address, log) of app.py with a secret in its environment, as a Space starts it."""
    log = tmp_path_factory.mktemp("public") / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"HF_TOKEN": SECRET, "HF_HUB_OFFLINE": "1", "PORT": str(port), "PYTHONUNBUFFERED": "1"}
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=out, stderr=out)
        address = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    httpx.get(address, timeout=5)
                    break
                except httpx.TransportError:
                    assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
                    time.sleep(0.2)
            assert SECRET in Path(f"/proc/{process.pid}/environ").read_text()
            yield address, log
        finally:
            process.terminate()
            process.wait(30)


def test_a_secret_is_in_no_page_no_answer_and_no_log(space):
    address, log = space
    client = Client(address, verbose=False, analytics_enabled=False)
    shown = [
        httpx.get(address + path, timeout=30).text
        for path in ("/", "/config", "/gradio_api/info", "/gradio_api/openapi.json")
    ]
    assert all(len(text) > 1000 for text in shown)
    shown.append(json.dumps(client.predict(api_name="/race_once", **GOOD)))
    shown += list(client.submit(api_name="/race", **GOOD))
    shown += [raced(client, endpoint, prompt=SECRET[:6], mode="magic") for endpoint in ("/race", "/race_once")]
    shown += [raced(client, endpoint, pair="gpt2") for endpoint in ("/race", "/race_once")]
    shown.append(log.read_text())
    assert len(shown) > 8 and not any(SECRET in text for text in shown)


@pytest.mark.parametrize("file", ["/proc/self/environ", "/etc/passwd", str(ROOT / "spaces_config.yaml"), "app.py"])
def test_no_file_of_the_machine_is_served(space, file):
    for call in ("/gradio_api/file=", "/file=", "/static/", "/assets/"):
        answer = httpx.get(f"{space[0]}{call}{file}", timeout=30)
        assert answer.status_code in (403, 404), (call, answer.text[:200])
        assert SECRET not in answer.text


def test_a_secret_is_in_no_trace(tmp_path):
    trace = tmp_path / "race.json"
    command = [
        sys.executable,
        "-m",
        "specdemo",
        "race",
        GOOD["prompt"],
        "--max-new-tokens",
        "8",
        "--trace",
        trace,
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"HF_TOKEN": SECRET}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert trace.stat().st_size > 1000
    assert SECRET not in trace.read_text() + done.stdout + done.stderr
