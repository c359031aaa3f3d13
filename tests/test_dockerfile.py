"""The Dockerfile, instruction by instruction. tests/image.py (`make image`) builds it and starts what comes out."""

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from specdemo import staging
from specdemo.config import read

ROOT = Path(__file__).parents[1]
PARSED = DockerfileParser(fileobj=(ROOT / "Dockerfile").open("rb"))
STEPS = [(step["instruction"], step["value"]) for step in PARSED.structure if step["instruction"] != "COMMENT"]


def values(instruction: str) -> list[str]:
    return [value for name, value in STEPS if name == instruction]


def at(instruction: str, part: str) -> int:
    """Where the one step with `part` in it stands."""
    (index,) = [i for i, (name, value) in enumerate(STEPS) if name == instruction and part in value]
    return index


def environment() -> dict[str, str]:
    return dict(word.split("=", 1) for value in values("ENV") for word in shlex.split(value))


def copied() -> list[str]:
    return [word for value in values("COPY") for word in value.split()[:-1] if not word.startswith("--")]


def test_the_linter_finds_nothing():
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout


def test_everything_after_the_account_runs_as_user_1000():
    assert values("USER") == ["1000"] and "--uid 1000" in values("RUN")[0]
    assert at("USER", "1000") == at("RUN", "useradd") + 1
    assert all("--chown=1000:1000" in value for value in values("COPY"))
    assert environment()["HOME"] == "/home/demo" and "--create-home" in values("RUN")[0]


def test_the_page_is_reached_from_outside_on_the_port_of_the_config():
    port = str(read().space.targets.docker.app_port)
    assert (environment()["HOST"], environment()["PORT"], values("EXPOSE")) == ("0.0.0.0", port, [port])


def test_the_weights_are_fetched_at_build_and_nothing_is_at_run_time():
    assert at("COPY", "requirements.txt") < at("RUN", "pip install") < at("COPY", "specdemo") < at("RUN", "fetch")
    # Only after the last step that needs a network.
    assert at("ENV", "HF_HUB_OFFLINE=1") > at("RUN", "fetch")
    assert json.loads(values("CMD")[0]) == ["python", "app.py"]


def test_a_change_of_the_code_does_not_install_everything_again():
    assert copied()[0] == "requirements.txt" and at("COPY", "app.py") > at("RUN", "pip install")


def test_another_package_index_can_be_named_and_none_is_by_default():
    """The torch of plain PyPI is a CUDA build; pip takes an argument of this name from the environment of RUN."""
    assert values("ARG") == ["PYTHON=3.12", "PIP_EXTRA_INDEX_URL="]
    assert at("ARG", "PIP_EXTRA_INDEX_URL") < at("RUN", "pip install")


def test_no_secret_and_no_host_is_written_into_the_image():
    text = (ROOT / "Dockerfile").read_text()
    assert "TOKEN" not in text and "SECRET" not in text
    assert "://" not in text.replace("http://127.0.0.1", "")


@pytest.mark.parametrize("file", copied())
def test_what_is_copied_is_there_is_let_through_and_is_in_the_folder_of_a_space(file):
    assert (ROOT / file).exists()
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in rules and f"!{file}" in rules
    shipped = [pattern.replace("**/*", "*") for pattern in [*staging.SHIPPED, *staging.DOCKER_TOO]]
    assert any(fnmatch(file, pattern) or fnmatch(f"{file}/x", pattern) for pattern in shipped)


def test_the_build_context_holds_what_is_copied_and_no_more():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] not in "#*"]
    assert {rule.removeprefix("!") for rule in rules} == set(copied())


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (500, False), (None, False)])
def test_the_healthcheck_tells_a_page_that_answers_from_one_that_does_not(status, healthy):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    _, _, command = values("HEALTHCHECK")[0].partition("CMD ")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = HTTPServer(("127.0.0.1", port), Page) if status else None
    if page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
    try:
        _, *arguments = json.loads(command)
        done = subprocess.run([sys.executable, *arguments], env=os.environ | {"PORT": str(port)}, capture_output=True)
    finally:
        if page:
            page.shutdown()
            page.server_close()
    assert (done.returncode == 0) == healthy
