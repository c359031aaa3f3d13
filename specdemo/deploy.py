"""spaces_config.yaml -> a Space: create it, set it up, upload its folder, wait until it runs."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from specdemo.config import Settings
from specdemo.space import Space, Target
from specdemo.staging import IGNORED, DeployError, stage

T = TypeVar("T")
PASSING = (429, 500, 502, 503, 504)  # HTTP: the next attempt may succeed
ATTEMPTS = 5
SECRET_PREFIX = "SPACE_"  # SPACE_HF_TOKEN holds the Space's HF_TOKEN: whoever deploys has a token of that name as well
LOG_LINES = 40


@dataclass(frozen=True)
class Order:
    """What to deploy where. update: the Space may exist already; its files are then replaced.

    patience_s: how long the Space may take to build and start. poll_s: seconds between two looks at it, and unit of
    the growing pauses between attempts.
    """

    repo: str
    target: Target
    settings: Settings
    update: bool = False
    private: bool = False
    patience_s: float = 1800.0
    poll_s: float = 5.0

    def __post_init__(self) -> None:
        try:
            validate_repo_id(self.repo)
        except HFValidationError as error:
            raise DeployError(f"{self.repo!r} is no name of a Space: {error}") from None
        if self.repo.count("/") != 1:
            raise DeployError(f"{self.repo!r} is no name of a Space; write OWNER/NAME")

    @property
    def space(self) -> Space:
        return self.settings.space


def deploy(order: Order, tell: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> str:
    """Create or update the Space and wait until it runs; returns its address.

    tell: hears one line for each thing done. environment: holds the secrets' values, behind SECRET_PREFIX.
    Raises DeployError.
    """
    secrets = _secrets(order.space, environment)
    token = get_token()
    if token is None:
        raise DeployError("no token: set HF_TOKEN to one that may write, or run `hf auth login`")
    disable_progress_bars()
    hub = _Hub(order, HfApi(token=token), hidden=[token, *secrets.values()])
    with tempfile.TemporaryDirectory() as name, _logged(hub.without_secrets):
        folder = Path(name)
        files = stage(order.settings, order.target, folder)
        return hub.deploy(folder, secrets, lambda words: tell(hub.without_secrets(words)), len(files))


@contextmanager
def _logged(rewrite: Callable[[str], str]) -> Iterator[None]:
    """Have every line that anybody logs rewritten: with HF_DEBUG set, the library logs the body of each call."""
    factory = logging.getLogRecordFactory()

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = factory(*args, **kwargs)
        made.msg, made.args = rewrite(made.getMessage()), ()
        return made

    logging.setLogRecordFactory(record)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)


def _secrets(space: Space, environment: Mapping[str, str]) -> dict[str, str]:
    values = {name: environment.get(SECRET_PREFIX + name, "") for name in space.secrets}
    missing = [SECRET_PREFIX + name for name, value in values.items() if not value]
    if missing:
        raise DeployError(f"the Space's secrets come from the environment; set {', '.join(missing)}")
    return values


class _Hub:
    """One deployment's calls, in their order; passing failures are tried again, the others told in plain words."""

    def __init__(self, order: Order, api: HfApi, hidden: list[str]) -> None:
        self.order, self.api = order, api
        self.hidden = {*hidden, *(json.dumps(value)[1:-1] for value in hidden)}  # as it is, and as a body has it

    def deploy(self, folder: Path, secrets: dict[str, str], tell: Callable[[str], None], files: int) -> str:
        order, api = self.order, self.api
        repo, place = order.repo, order.space.place(order.target)
        space_args: dict[str, Any] = {"repo_id": repo, "repo_type": "space"}
        there = self._call(f"look for {repo}", lambda: api.repo_exists(**space_args))
        if there and not order.update:
            raise DeployError(f"{repo} exists already; add --update to replace its files, or choose another name")
        if not there:
            sdk = order.space.front_matter(order.target)["sdk"]
            tell(f"creating {repo} ({sdk}, {place.hardware.value})")
            self._call(
                f"create {repo} on {place.hardware.value}",
                # The hardware at once: an account that may have this kind may not have the one given by default.
                # exist_ok: an attempt whose answer was lost may have succeeded.
                lambda: api.create_repo(
                    **space_args, space_sdk=sdk, space_hardware=place.hardware, private=order.private, exist_ok=True
                ),
            )
        for name, value in place.variables.items():
            tell(f"setting the variable {name}")
            self._call(f"set the variable {name}", lambda: api.add_space_variable(repo, name, value))  # noqa: B023
        for name, value in secrets.items():
            tell(f"setting the secret {name}")
            self._call(f"set the secret {name}", lambda: api.add_space_secret(repo, name, value))  # noqa: B023
        tell(f"uploading {files} files")
        commit = self._call(
            f"upload to {repo}",
            lambda: api.upload_folder(
                **space_args,
                folder_path=folder,
                ignore_patterns=list(IGNORED),
                delete_patterns=["*"],  # a file that was dropped here must not live on there
                commit_message="Deploy specdemo",
            ),
        )
        runtime = self._call("ask how the Space is", lambda: api.get_space_runtime(repo))
        if place.hardware not in (runtime.hardware, runtime.requested_hardware):
            tell(f"requesting {place.hardware.value}")
            self._call(
                f"get {place.hardware.value}",
                lambda: api.request_space_hardware(repo, place.hardware),
            )
        tell("waiting until it is built and has started")
        self._await_running(commit.oid)
        return f"{api.endpoint}/spaces/{repo}"

    def _await_running(self, commit: str) -> None:
        """Return once `commit` runs. Raises DeployError with the end of the log where it does not."""
        order, deadline = self.order, time.monotonic() + self.order.patience_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            runtime = self._call(
                "wait for the Space",
                lambda: self.api.wait_for_space(order.repo, timeout=left, poll_interval=order.poll_s),  # noqa: B023
            )
            # For a moment after an upload the Hub still reports on what ran before.
            if runtime.raw.get("sha", commit) == commit:
                break
            if not left:
                raise DeployError(f"the Hub has not begun to build {order.repo}; look at it there")
            time.sleep(order.poll_s)
        if runtime.stage != "RUNNING":
            why = runtime.raw.get("errorMessage") or ""
            raise DeployError(
                self.without_secrets(f"{order.repo} is {runtime.stage}. {why}\n{self._log(runtime.stage)}".strip())
            )

    def _log(self, stage: str) -> str:
        """The last lines of the log that belongs to a failed stage; "" where the Hub gives none."""
        try:
            lines = list(self.api.fetch_space_logs(self.order.repo, build=stage == "BUILD_ERROR"))
        except (httpx2.HTTPError, OSError):
            return ""
        return "\n".join("".join(lines).splitlines()[-LOG_LINES:])

    def _call(self, what: str, call: Callable[[], T]) -> T:
        pause = wait_exponential_jitter(multiplier=self.order.poll_s / 5, max=6 * self.order.poll_s)
        attempts = Retrying(
            retry=retry_if_exception(_passes), stop=stop_after_attempt(ATTEMPTS), wait=pause, reraise=True
        )
        try:
            return attempts(call)
        except HfHubHTTPError as error:
            raise DeployError(self.without_secrets(_words(what, self.order, error))) from None
        except httpx2.TransportError as error:
            raise DeployError(self.without_secrets(f"cannot {what}: the Hub does not answer ({error})")) from None
        except (OSError, ValueError) as error:  # a file that cannot be read; front matter that the Hub does not accept
            raise DeployError(self.without_secrets(f"cannot {what}: {error}")) from None

    def without_secrets(self, words: str) -> str:
        for value in self.hidden:
            words = words.replace(value, "***")
        return words


def _passes(error: BaseException) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING
    return isinstance(error, httpx2.TransportError)


def _words(what: str, order: Order, error: HfHubHTTPError) -> str:
    """One line on why the Hub refused, and what to change."""
    status, owner = error.response.status_code, order.repo.partition("/")[0]
    said = " ".join((error.server_message or "").split())[:200]
    advice = {
        401: "the token is not valid, or has expired; make a new one that may write, and set HF_TOKEN to it",
        402: "the Hub wants a paid plan or credits for this hardware; another --target runs on other hardware",
        403: f"the token may not; use one that may write to {owner}, or choose a name or hardware that is yours to use",
        404: f"there is none that this token may see; use a token that may write to {owner}",
        409: "the name is taken; choose another one",
    }.get(status, "try again later" if status in PASSING else "")
    return f"cannot {what}: {'; '.join(part for part in (advice, said and f'the Hub says: {said}') if part)} ({status})"
