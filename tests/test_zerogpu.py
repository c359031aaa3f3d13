"""The page on ZeroGPU: app.py under the real `spaces`, its races in forked workers; who lends the GPU is a stand-in."""

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

import app
from specdemo.config import read
from specdemo.engine.types import Finish, Node, Origin, Outcome, Step, Token
from specdemo.request import RaceRequest
from specdemo.ui.show import Refusal, play

ROOT = Path(__file__).parents[1]
GOOD = {"prompt": "Name the days of the week.", "mode": "ngram", "dtype": "fp32", "max_new_tokens": 8}
START_S = 120


class Scheduler(ThreadingHTTPServer):
    """What lends GPUs: notes each call as (path, query), and refuses while `spent` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Lender)
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.spent = False
        self.address = f"http://127.0.0.1:{self.server_port}"

    def of(self, path: str) -> list[dict[str, str]]:
        return [query for called, query in self.calls if called == path]


class Lender(BaseHTTPRequestHandler):
    server: Scheduler

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        self.server.calls.append((url.path, {key: value[0] for key, value in parse_qs(url.query).items()}))
        status, body = 200, {}
        if url.path == "/schedule":
            body = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "none", "allowToken": "token"}
            if self.server.spent:
                status, body = 429, {"left": 3, "wait": "PT1H"}
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def scheduler():
    server = Scheduler()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def space(scheduler, tmp_path_factory):
    """(address, process) of the page."""
    folder = tmp_path_factory.mktemp("zerogpu")
    (folder / "cgroup").write_text("0::/kubepods/pod/container\n1:devices:/kubepods/pod/container\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": scheduler.address,
        "ZEROGPU_PROC_SELF_CGROUP_PATH": str(folder / "cgroup"),
        "ZEROGPU_OFFLOAD_DIR": str(folder / "offload"),
        "PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    log = (folder / "log").open("w+")
    command = [sys.executable, "tests/zerogpu_app.py"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment | {"PYTHONPATH": "."}, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + START_S
        while not _answers(address):
            assert process.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()[-3000:]
            time.sleep(0.2)
        yield address, process
    finally:
        family = [*psutil.Process(process.pid).children(recursive=True), process]
        for member in family:
            member.kill()
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def connect(address: str) -> Client:
    return Client(address, verbose=False, analytics_enabled=False, headers={"x-ip-token": "visitor"})


@pytest.fixture(scope="module")
def client(space) -> Client:
    return connect(space[0])


def test_elsewhere_nothing_is_lent_and_spaces_is_not_needed(monkeypatch):
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    monkeypatch.setitem(sys.modules, "spaces", None)  # importing it fails
    assert app.lent(read()) is None


def test_off_zerogpu_the_decorator_leaves_play_as_it_is(monkeypatch):
    import spaces  # it looks for ZeroGPU when it is imported; app.py looks later

    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert spaces.config.Config.zero_gpu is False
    assert app.lent(read()) is play


def test_all_that_a_step_holds_comes_back_equal_from_a_pickle():
    token = Token(3, Origin.NGRAM, -0.5, 1.5)
    node = Node(4, -1, Origin.DRAFT, Outcome.UNTESTED, None, 0.25)
    step = Step((token,), (node,), 0.1, 0.2, 0.3, 4, 5, 6, Finish.EOS, "note")
    refusal = Refusal("mode: choose another")
    request = RaceRequest(prompt="x", temperature=0.5)
    for value in (step, refusal, request):
        again = pickle.loads(pickle.dumps(value))
        assert again == value and type(again) is type(value)


@pytest.mark.model
def test_a_copy_of_a_run_tells_the_same_and_holds_no_model():
    request = RaceRequest(prompt="one two one two", dtype="fp32", max_new_tokens=8)
    played = play(request)
    run = next(played)
    packed = pickle.dumps(run)
    copy = pickle.loads(packed)
    assert len(packed) < 3_000_000 and copy.loaded.target is None  # tokenizer and names; the models are hundreds of MB
    for taken in played:
        run.add(taken)
        copy.add(pickle.loads(pickle.dumps(taken)))
    assert copy.result() == run.result()
    assert copy.lossless == run.lossless and copy.trace == run.trace


@pytest.mark.model
def test_a_race_runs_in_a_worker_that_was_lent_a_gpu(space, client, scheduler):
    before = len(scheduler.of("/schedule"))
    answer = client.predict(api_name="/race_once", **GOOD)
    assert answer["lossless"]["verdict"] == "identical"
    assert answer["plain"]["tokens"] == answer["speculative"]["tokens"] == GOOD["max_new_tokens"]
    asked = scheduler.of("/schedule")[before:]
    assert len(asked) == 1  # both paths in one loan
    workers = psutil.Process(space[1].pid).children()
    assert {query["pid"] for query in scheduler.of("/allow")} & {str(worker.pid) for worker in workers}


@pytest.mark.model
def test_the_loan_is_for_the_configured_seconds_and_on_the_visitors_account(client, scheduler):
    from spaces.zero.config import get_config

    client.predict(api_name="/race_once", **GOOD)
    asked = scheduler.of("/schedule")[-1]
    seconds = read().space.targets.zerogpu.duration_s * get_config()["duration_factor"]
    assert asked["durationSeconds"] == str(round(seconds))
    assert asked["token"] == "visitor"


@pytest.mark.model
def test_the_process_that_serves_the_page_loads_no_model(space, client):
    client.predict(api_name="/race_once", **GOOD)
    maps = Path(f"/proc/{space[1].pid}/maps").read_text()
    assert "model.safetensors" not in maps
    # The weights alone are 538 MB; Python with torch and Gradio is some 600.
    worker, own = (psutil.Process(space[1].pid).children()[0], psutil.Process(space[1].pid))
    assert worker.memory_info().rss - own.memory_info().rss > 300e6


@pytest.mark.model
def test_a_streamed_race_has_every_step_and_its_end(client):
    *_, log = client.submit(api_name="/race", **GOOD)
    told = [json.loads(line) for line in log.splitlines()]
    steps = [event for event in told if event["e"] == "step"]
    for side in ("plain", "speculative"):
        assert sum(len(step["tokens"]) for step in steps if step["side"] == side) == GOOD["max_new_tokens"]
    assert told[-1]["e"] == "end" and told[-1]["finish"] == {"plain": "length", "speculative": "length"}


@pytest.mark.model
def test_a_refusal_of_the_worker_reaches_the_visitor_in_its_words(client):
    with pytest.raises(AppError, match="^prompt: has "):
        client.predict(api_name="/race_once", **GOOD | {"prompt": "\U0001f9ff" * 19_000})


@pytest.mark.model
def test_a_stopped_race_gives_the_gpu_back_and_the_next_one_gets_it(client, scheduler):
    job = client.submit(api_name="/race", **GOOD | {"max_new_tokens": 512})
    deadline = time.monotonic() + 60
    while not any('"e":"step"' in log for log in job.outputs()[-1:]):
        assert time.monotonic() < deadline and not job.done(), "the race does not begin"
        time.sleep(0.05)
    given_back = len(scheduler.of("/release"))
    job.cancel()
    deadline = time.monotonic() + 30
    while len(scheduler.of("/release")) == given_back:
        assert time.monotonic() < deadline, "the GPU is not given back"
        time.sleep(0.05)
    answer = client.predict(api_name="/race_once", **GOOD)
    assert answer["plain"]["tokens"] == GOOD["max_new_tokens"]


@pytest.mark.model
def test_a_visitor_without_time_left_is_told_so(client, scheduler):
    scheduler.spent = True
    try:
        with pytest.raises(AppError, match="exceeded your .*quota"):
            client.predict(api_name="/race_once", **GOOD)
    finally:
        scheduler.spent = False


def test_no_gpu_is_asked_for_before_the_weights_are_there():
    """Regression: the visitor's seconds went into the download."""
    from types import SimpleNamespace

    from specdemo.ui.show import Show

    asked = threading.Event()

    def lent(request):
        asked.set()
        yield Refusal("enough")

    warmup = SimpleNamespace(words="Downloading", fetched=threading.Event())
    frames = Show(GOOD, read(), warmup, None, lent).frames()
    assert [event["e"] for event in next(frames)] == ["start", "status"]
    assert next(frames) and not asked.is_set()
    warmup.fetched.set()
    *_, last = frames
    assert asked.is_set() and last == [{"e": "error", "text": "enough"}]


def test_the_queue_is_as_long_as_the_settings_say(monkeypatch):
    from specdemo.config import Queue, Settings
    from specdemo.ui.build import build

    assert build(Settings(queue=Queue(max_size=3)), lent=play)._queue.max_size == 3
