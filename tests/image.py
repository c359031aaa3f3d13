"""Build the Dockerfile and start the image without a network, on a Debian machine that has no container engine.

    python tests/image.py     # as root; installs buildah and debootstrap with apt-get where they are missing

buildah carries the Dockerfile out in a chroot; no daemon and no registry is needed, since the image it starts FROM is
made here: Debian with its own Python under the name of the official one. The container then runs in a network
namespace of its own that has nothing but loopback, as the image's user, and the image's own HEALTHCHECK must succeed.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGE = "localhost/specdemo"
PACKAGES = "ca-certificates,python3,python3-pip"
START_S = 240  # seconds from start to a healthy container, at most; an idle machine needs a tenth


def run(*command: object, **options: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    output: str = done.stdout
    return output.strip()


def tools() -> None:
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if missing:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing)


def base() -> str:
    """Make the image that the Dockerfile starts from, unless it is there; returns the Python version it stands for."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite = release["VERSION_CODENAME"]
    mark = f"localhost/base-{suite}"
    if not run("buildah", "images", "--quiet", "--filter", f"reference={mark}"):
        with tempfile.TemporaryDirectory() as folder:
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, folder)
            run("chroot", folder, "ln", "-s", "/usr/bin/python3", "/usr/local/bin/python")
            for note in Path(folder, "usr/lib").glob("python3.*/EXTERNALLY-MANAGED"):
                note.unlink()  # the official image has none
            container = run("buildah", "from", "scratch")
            run("buildah", "add", "--quiet", container, folder, "/")
            run("buildah", "commit", "--quiet", "--format=docker", "--rm", container, mark)
    container = run("buildah", "from", mark)
    version = run(*inside(container), "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    run("buildah", "rm", container)
    run("buildah", "tag", mark, f"docker.io/library/python:{version}-slim")
    return version


def pip_settings(folder: Path) -> list[str]:
    """pip inside finds packages as pip outside does: its settings as /etc/pip.conf, and what on disk they name."""
    settings: dict[str, str] = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, value = line.split("=", 1)
        section, _, name = key.rpartition(".")
        if section == ":env:" or name not in settings:  # pip lets its environment win
            settings[name] = value.strip("'\"").replace("\\n", " ")
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    places = [Path(word.removeprefix("file://")) for value in settings.values() for word in value.split()]
    mounts = [place for place in places if place.is_absolute() and place.exists()]
    # The folder of an index holds links to files beside it.
    sources = {place.parent if place.name == "simple" else place for place in mounts}
    return [f"--volume={folder / 'pip.conf'}:/etc/pip.conf:ro", *(f"--volume={place}:{place}:ro" for place in sources)]


def inside(container: str) -> list[str]:
    """The start of a command that runs in a container, as its image's user."""
    return ["buildah", "run", "--isolation=chroot", container, "--"]


def build(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ["buildah", "build", "--isolation=chroot", "--format=docker", f"--tag={IMAGE}", "--pull-never"]
        command += [f"--build-arg=PYTHON={version}", *pip_settings(Path(folder)), str(ROOT)]
        subprocess.run(command, check=True)


def start() -> None:
    """Start the image behind loopback alone, wait for its HEALTHCHECK, race. Raises SystemExit where one fails."""
    config = json.loads(run("buildah", "inspect", "--type=image", IMAGE))["Docker"]["config"]
    probe = config["Healthcheck"]["Test"]
    assert config["User"] == "1000" and probe[0] == "CMD", config
    container = run("buildah", "from", "--pull-never", IMAGE)
    try:
        with subprocess.Popen(NAMESPACE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
            tell(shell, [*inside(container), *config["Cmd"]], ">&2 &")
            began = time.monotonic()
            while ask(shell, [*inside(container), *probe[1:]], "2>/dev/null")[1]:
                if time.monotonic() - began > START_S:
                    raise SystemExit("the container did not become healthy")
                time.sleep(1)
            print(f"healthy after {time.monotonic() - began:.0f} s, without a network")
            words, status = ask(shell, [*inside(container), "python", "-c", CHECK])
            print(words)
            if status:
                raise SystemExit("the race in the container failed")
    finally:
        run("buildah", "rm", container)


# A shell that has only loopback, and whose end is the end of all that it started.
NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
NAMESPACE += ["sh", "-c", "ip link set lo up && exec sh"]

CHECK = """
import os, socket
from gradio_client import Client
assert os.getuid() == 1000, os.getuid()
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
except OSError:
    pass
else:
    raise AssertionError("there is a network")
race = Client(f"http://127.0.0.1:{os.environ['PORT']}/", verbose=False)
result = race.predict("Name the days of the week.", max_new_tokens=16, api_name="/race_once")
assert result["plain"]["tokens"] == result["speculative"]["tokens"] == 16, result
print(result["plain"]["text"], result["lossless"])
"""


def tell(shell: subprocess.Popen[str], command: list[str], redirections: str) -> None:
    """Have the shell begin a command; buildah would read what is meant for the shell."""
    print(shlex.join(command), "</dev/null", redirections, file=shell.stdin, flush=True)


def ask(shell: subprocess.Popen[str], command: list[str], redirections: str = "") -> tuple[str, int]:
    """(output, exit status) of a command that the shell runs."""
    tell(shell, command, f"{redirections}; code=$?; echo; echo status $code")
    lines = []
    assert shell.stdout
    for line in shell.stdout:
        if line.startswith("status "):
            return "".join(lines).strip(), int(line.split()[1])
        lines.append(line)
    raise SystemExit("the namespace has ended")


if __name__ == "__main__":
    if os.geteuid() != 0:
        raise SystemExit("run this as root: it makes chroots and network namespaces")
    tools()
    build(base())
    start()
