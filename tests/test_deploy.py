"""`deploy`: the folder that a Space is made of, and the calls that make it, against a local stand-in of the Hub."""

import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants as constants
import pytest
from huggingface_hub import SpaceCard
from spaces_hub import COMMIT, hub

from specdemo import deploy as deployment
from specdemo import staging
from specdemo.config import Settings, read
from specdemo.deploy import Order, deploy
from specdemo.space import TARGETS, Space
from specdemo.staging import DeployError, stage

ROOT = Path(__file__).parents[1]
TOKEN, SECRET = "hf_tokenthatmaywrite", "hf_secretofthespace"
SETTINGS = read()
SPACE = SETTINGS.space
CREATE, RUNTIME = "POST repos/create", "GET spaces/me/demo/runtime"
COMMIT_CALL, HARDWARE = "POST spaces/me/demo/commit/main", "POST spaces/me/demo/hardware"
GONE = [(502, "bad gateway")] * deployment.ATTEMPTS


@pytest.fixture
def server(monkeypatch):
    with hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def settings_with(variables: dict[str, str] | None = None, pairs: list[str] | None = None, **changes) -> Settings:
    """SETTINGS with another Space: other secrets, other variables of the gradio and the docker target."""
    raw = SPACE.model_dump(mode="json") | changes
    for target in ("gradio", "docker"):
        raw["targets"][target]["variables"] = variables or {}
    return Settings(space=Space.model_validate(raw), pairs=pairs or SETTINGS.pairs)


def ordered(
    settings: Settings = SETTINGS, environment: dict[str, str] | None = None, **options
) -> tuple[str, list[str]]:
    """(address, lines told) of a deployment that does not wait long."""
    told: list[str] = []
    options = {"repo": "me/demo", "target": "gradio", "poll_s": 0.01} | options
    return deploy(Order(settings=settings, **options), told.append, environment or {}), told


def refused(**options) -> str:
    with pytest.raises(DeployError) as refusal:
        ordered(**options)
    assert TOKEN not in str(refusal.value) and SECRET not in str(refusal.value)
    return str(refusal.value)


def deciding(calls: list[str]) -> list[str]:
    """The calls that change something, and the first of a row of looks at the Space."""
    kept = [
        call for call in calls if not call.endswith(("agent-harnesses", "validate-yaml")) and "preupload" not in call
    ]
    return [call for i, call in enumerate(kept) if i == 0 or call != kept[i - 1]]


# --- the folder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_the_hubs_own_class_reads_the_front_matter_of_the_config(target, tmp_path):
    stage(SETTINGS, target, tmp_path / "new")
    card = SpaceCard.load(tmp_path / "new" / "README.md")
    assert card.data.to_dict() == SPACE.front_matter(target)
    assert card.text.strip() == (ROOT / "README.md").read_text().strip()


@pytest.mark.parametrize("target", TARGETS)
def test_the_folder_holds_what_the_demo_needs_and_nothing_else(target, tmp_path):
    names = stage(SETTINGS, target, tmp_path)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == set(names)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in tracked if name.startswith("specdemo/")} <= written
    assert {"app.py", "requirements.txt", "spaces_config.yaml", "LICENSE", "README.md"} <= written
    assert ("Dockerfile" in written) == (target == "docker")
    for name in written:
        assert name.partition("/")[0] not in ("tests", "data", "benchmarks", ".git", ".venv", "traces")
        assert not name.endswith(".pyc") and "/." not in name


def test_the_page_of_the_folder_is_built_without_the_rest_of_the_project(tmp_path):
    stage(SETTINGS, "gradio", tmp_path)
    code = "import app, specdemo; print(specdemo.__file__); print(app.read().space.app_file)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "specdemo" / "__init__.py"), "app.py"]


def test_what_should_not_be_shipped_stays_at_home(tmp_path, monkeypatch):
    root = tmp_path / "root"
    for name in [*staging.SHIPPED, "specdemo/a.py", "specdemo/.env", "specdemo/__pycache__/a.pyc", "docs/.DS_Store"]:
        if "*" not in name:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"gradio=={SPACE.sdk_version}\n")
    monkeypatch.setattr(staging, "ROOT", root)
    names = stage(SETTINGS, "gradio", tmp_path / "new")
    assert sorted(name for name in names if "/" in name) == ["specdemo/a.py"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DeployError, match="not an empty folder"):
        stage(SETTINGS, "gradio", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        ({"sdk_version": "6.0.0"}, "gradio", "requirements.txt: pin gradio==6.0.0"),
        ({"app_file": "main.py"}, "gradio", "there is no main.py"),
    ],
)
def test_a_folder_that_would_not_run_is_refused(change, target, message, tmp_path):
    with pytest.raises(DeployError, match=message):
        stage(settings_with(**change), target, tmp_path)


@pytest.mark.parametrize(
    ("pairs", "target", "changes", "words"),
    [
        (["embedded", "gemma2"], "gradio", {}, ["HF_TOKEN", "google/gemma-2-2b-it, google/gemma-2-9b-it"]),
        (["embedded", "gemma2"], "gradio", {"secrets": ["HF_TOKEN"]}, []),
        (["embedded", "smollm2"], "docker", {}, ["HF_HUB_OFFLINE", "smollm2"]),
        (["embedded", "smollm2"], "docker", {"variables": {"HF_HUB_OFFLINE": "0"}}, []),
        (["embedded", "smollm2"], "gradio", {}, []),
        (["embedded", "nothing"], "gradio", {}, ["there is no 'nothing'"]),
    ],
)
def test_a_pair_that_the_space_could_not_fetch_is_told_of(pairs, target, changes, words, tmp_path):
    settings = settings_with(pairs=pairs, **changes)
    if not words:
        stage(settings, target, tmp_path)
        return
    with pytest.raises(DeployError) as refusal:
        stage(settings, target, tmp_path)
    assert all(word in str(refusal.value) for word in words)


def test_the_dry_run_needs_no_token_and_no_network(tmp_path):
    command = [
        sys.executable,
        "-m",
        "specdemo",
        "deploy",
        "me/demo",
        "--target",
        "zerogpu",
        "--dry-run",
        tmp_path / "new",
    ]
    # An endpoint where nobody listens, and no token.
    environment = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "app.py" in done.stdout.splitlines() and "nothing was uploaded" in done.stderr
    assert SpaceCard.load(tmp_path / "new" / "README.md").data.to_dict()["suggested_hardware"] == "zero-a10g"


# --- the calls -----------------------------------------------------------------------------------------------------


def test_a_space_is_created_set_up_filled_and_awaited_in_this_order(server, tmp_path):
    settings = settings_with(secrets=["HF_TOKEN"], variables={"SPECDEMO_LIMITS__MAX_NEW_TOKENS": "256"})
    address, told = ordered(settings, {"SPACE_HF_TOKEN": SECRET})
    assert address == f"{server.address}/spaces/me/demo"
    assert deciding(server.calls) == [
        "GET spaces/me/demo",
        CREATE,
        "POST spaces/me/demo/variables",
        "POST spaces/me/demo/secrets",
        "GET spaces/me/demo/tree/main",
        COMMIT_CALL,
        RUNTIME,
    ]
    said = dict(zip(server.calls, server.bodies, strict=True))
    assert said[CREATE] | {"sdk": "gradio", "hardware": "cpu-basic", "visibility": "public"} == said[CREATE]
    assert said["POST spaces/me/demo/variables"] == {"key": "SPECDEMO_LIMITS__MAX_NEW_TOKENS", "value": "256"}
    assert said["POST spaces/me/demo/secrets"] == {"key": "HF_TOKEN", "value": SECRET}
    assert server.tokens - {""} == {f"Bearer {TOKEN}"}
    stage(settings, "gradio", tmp_path)
    assert server.files == {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert not any(SECRET in line or TOKEN in line for line in told)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_asks_for_its_sdk_and_hardware_when_it_is_created(server, target):
    ordered(target=target)
    said = server.bodies[server.calls.index(CREATE)]
    front = SPACE.front_matter(target)
    assert (said["sdk"], said["hardware"]) == (front["sdk"], front["suggested_hardware"])
    assert HARDWARE not in server.calls


def test_an_update_replaces_all_files_and_drops_those_that_are_gone(server):
    server.space, server.files = {"sdk": "gradio"}, {"old.py": b"", "app.py": b"", ".gitattributes": b""}
    server.hardware = "cpu-basic"
    ordered(update=True)
    assert "old.py" not in server.files and ".gitattributes" in server.files
    assert server.files["app.py"] == (ROOT / "app.py").read_bytes()


def test_hardware_that_a_space_does_not_have_is_requested(server):
    server.keeps_hardware = False
    ordered(target="zerogpu")
    assert server.bodies[server.calls.index(HARDWARE)] == {"flavor": "zero-a10g"}
    assert server.calls.index(HARDWARE) > server.calls.index(COMMIT_CALL)


def test_a_space_that_still_runs_an_earlier_commit_is_not_taken_for_the_new_one(server):
    server.stale = 3
    ordered()
    assert server.calls.count(RUNTIME) > 3 and server.stages == ["RUNNING"]


@pytest.mark.parametrize("call", [CREATE, "POST spaces/me/demo/secrets", RUNTIME, "GET spaces/me/demo"])
@pytest.mark.parametrize("status", deployment.PASSING)
def test_a_passing_failure_is_tried_again(server, call, status):
    server.failures[call] = [(status, "a moment, please")] * 2
    ordered(settings_with(secrets=["HF_TOKEN"]), {"SPACE_HF_TOKEN": SECRET})
    assert server.failures[call] == [] and server.stages == ["RUNNING"]


def test_a_creation_whose_answer_was_lost_is_not_taken_for_somebody_elses_space(server):
    server.failures[CREATE] = [(504, "gateway timeout")]
    server.answers_are_lost = True
    ordered()
    assert server.calls.count(CREATE) == 2


# --- refusals ------------------------------------------------------------------------------------------------------


def test_without_a_token_nothing_is_asked(server, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    assert refused() == "no token: set HF_TOKEN to one that may write, or run `hf auth login`"
    assert server.calls == []


def test_without_a_secrets_value_nothing_is_asked(server):
    message = refused(
        settings=settings_with(secrets=["HF_TOKEN", "OTHER"]), environment={"SPACE_OTHER": "x", "HF_TOKEN": "y"}
    )
    assert message == "the Space's secrets come from the environment; set SPACE_HF_TOKEN"
    assert server.calls == []


@pytest.mark.parametrize("repo", ["demo", "me/demo/x", "me/..", "../demo", "me/de mo", "", "me/"])
def test_a_name_that_is_none_is_refused(repo):
    with pytest.raises(DeployError, match="no name of a Space"):
        Order(repo, "gradio", SETTINGS)


def test_a_name_that_is_taken_is_left_alone_unless_told_to_update(server):
    server.space = {}
    assert refused() == "me/demo exists already; add --update to replace its files, or choose another name"
    assert not any(call.startswith("POST") for call in server.calls)


@pytest.mark.parametrize(
    ("call", "failures", "words"),
    [
        ("GET spaces/me/demo", [(401, "Invalid credentials")], ["look for me/demo", "401"]),
        (CREATE, [(401, "Invalid credentials in Authorization header")], ["create me/demo", "not valid", "HF_TOKEN"]),
        (CREATE, [(403, "no rights in me")], ["create me/demo", "may write to me", "no rights in me"]),
        (CREATE, [(402, "PRO needed")], ["create me/demo on cpu-basic", "paid plan", "--target", "PRO needed"]),
        (CREATE, GONE, ["create me/demo", "try again later", "502"]),
        (COMMIT_CALL, [(403, "read only")] * 99, ["upload to me/demo", "may write to me"]),
        ("POST validate-yaml", [(400, "colorFrom is odd")] * 99, ["upload to me/demo", "colorFrom"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_of_the_hub_says_what_to_change(server, call, failures, words):
    server.failures[call] = list(failures)
    message = refused()
    assert all(word in message for word in words), message
    assert "Traceback" not in message


@pytest.mark.parametrize(("status", "word"), [(402, "paid plan"), (403, "hardware that is yours to use")])
def test_refused_hardware_is_named_with_a_way_out(server, status, word):
    server.keeps_hardware = False
    server.failures[HARDWARE] = [(status, "not for you")]
    message = refused(target="zerogpu")
    assert message.startswith("cannot get zero-a10g: ") and word in message and "not for you" in message


def test_a_hub_that_does_not_answer_is_said_to(server, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub does not answer" in refused()


@pytest.mark.parametrize(
    ("stage", "log"), [("BUILD_ERROR", "build"), ("RUNTIME_ERROR", "run"), ("CONFIG_ERROR", "run")]
)
def test_a_space_that_fails_is_told_with_the_end_of_its_log_and_no_secret(server, stage, log):
    server.stages = ["BUILDING", stage]
    server.log = [f"line {i}\n" for i in range(100)] + [f"token={SECRET} {TOKEN}\n"]
    message = refused(settings=settings_with(secrets=["HF_TOKEN"]), environment={"SPACE_HF_TOKEN": SECRET})
    assert message.startswith(f"me/demo is {stage}.") and message.endswith("token=*** ***")
    assert "line 99" in message and "line 9\n" not in message
    assert f"GET spaces/me/demo/logs/{log}" in server.calls


def test_a_space_that_takes_too_long_is_not_awaited_for_ever(server):
    server.stages = ["BUILDING"]
    assert "still in stage 'BUILDING'" in refused(patience_s=0.1)


def test_a_build_that_never_begins_is_not_awaited_for_ever(server):
    server.stale = 10**6
    assert "has not begun to build me/demo" in refused(patience_s=0.1)


@pytest.mark.parametrize("debug", ["", "1"])
def test_the_command_shows_no_secret_even_while_the_library_logs_every_call(server, debug, tmp_path):
    config = (ROOT / "spaces_config.yaml").read_text()
    environment = os.environ | {
        "HF_ENDPOINT": server.address,
        "HF_TOKEN": TOKEN,
        "HF_DEBUG": debug,
        "SPACE_DEMO_KEY": SECRET,
        "SPECDEMO_SPACE__SECRETS": '["DEMO_KEY"]',
    }
    server.stages = ["RUNNING"]
    command = [sys.executable, "-m", "specdemo", "deploy", "me/demo"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"{server.address}/spaces/me/demo\n"
    assert {"key": "DEMO_KEY", "value": SECRET} in server.bodies
    assert SECRET not in done.stderr and TOKEN not in done.stderr
    assert ("Send: curl" in done.stderr) == bool(debug)
    assert SECRET not in config and COMMIT not in config
