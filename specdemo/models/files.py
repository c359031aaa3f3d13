"""A model's config and tokenizer, from the hub, a directory or the embedded target.

Read without a byte of weights, but for the embedded target: its weights, config and tokenizer are one file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from specdemo.models import embedded, embedded_draft
from specdemo.request import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

# Everything that a config and a tokenizer are made of, under the names that transformers writes.
SMALL_FILES = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
]  # fmt: skip


class LoadError(RequestError):
    """The pair cannot be used; the message says why and what to change."""


def place(name: str) -> Path:
    """Where a model of that name would lie on this machine. What is embedded is made ready first; raises FetchError."""
    if name == "embedded":
        return embedded.fetch()
    return embedded_draft.fetch() if name == "embedded-draft" else Path(name).expanduser()


def small_files(name: str) -> Path:
    """The folder that holds config and tokenizer of a model id, a directory or "embedded"; fetched where needed.

    Raises LoadError: no such model, no access, no network.
    """
    folder = place(name)
    if not folder.is_dir():
        folder = _fetched(name)
    if not (folder / "config.json").is_file():
        raise LoadError(f"cannot load {name!r}: it has no config.json; choose a model that transformers can read")
    return folder


# What reads a model is told trust_remote_code=False: left unsaid, transformers asks on the terminal and may hear a yes.


def read_config(name: str) -> PreTrainedConfig:
    """The config of a model id, a directory or "embedded". Raises LoadError."""
    from transformers import AutoConfig

    folder = small_files(name)
    try:
        raw = json.loads((folder / "config.json").read_text())
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except json.JSONDecodeError as error:
        raise LoadError(f"cannot load {name!r}: its config.json is broken ({error}); fetch it again") from error
    except Exception as error:  # a config is checked by its class, and every class raises as it likes
        kind = raw.get("model_type") if isinstance(raw, dict) else None
        wrong = f"transformers cannot read its config.json (model_type {kind!r}): {_line(error)}"
        raise LoadError(f"cannot load {name!r}: {wrong}") from error
    return config


def read_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model id, a directory or "embedded". Raises LoadError."""
    from transformers import AutoTokenizer

    folder = small_files(name)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exception for a broken file
        raise LoadError(f"cannot load {name!r}: its tokenizer cannot be read: {_line(error)}") from error
    return tokenizer


def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    bars = not are_progress_bars_disabled()
    disable_progress_bars()  # a few small files; and a refusal is one line
    try:
        return Path(snapshot_download(name, allow_patterns=SMALL_FILES, local_files_only=not _answers(name)))
    except HFValidationError as error:
        wrong = "there is no such directory, and a model id is written owner/name"
        raise LoadError(f"cannot load {name!r}: {wrong}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise LoadError(f"cannot load {name!r}: {refusal(name, error)}") from error
    except Exception as error:  # what lies under the hub's client: proxy, certificate, a broken answer, a full disk
        wrong = f"its small files cannot be fetched ({_line(error)}); check the network and the disk"
        raise LoadError(f"cannot load {name!r}: {wrong}") from error
    finally:
        if bars:
            enable_progress_bars()


def _answers(name: str) -> bool:
    """Whether the hub says anything at all within HF_HUB_ETAG_TIMEOUT; a download would wait for it without end."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(name, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (HfHubHTTPError, HFValidationError):
        return True
    except Exception:  # no network, no such host, a proxy's refusal, nothing in time: what is here must do
        return False
    return True


def refusal(name: str, error: BaseException) -> str:
    """Why the hub refused, and what to do; never shows a token."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    while not isinstance(error, HfHubHTTPError) and error.__cause__ is not None:
        error = error.__cause__
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    page, has_token = f"{ENDPOINT}/{name}", bool(get_token())
    token = "an access token in the environment variable HF_TOKEN"
    if isinstance(error, GatedRepoError):
        if has_token:
            return f"it is gated, and your token's account has no access yet: accept its licence at {page}"
        return f"it is gated: accept its licence at {page}, then put {token}"
    if status in (401, 403) and has_token:
        return f"the hub does not accept your token ({status}): put a valid one in the environment variable HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403, 404):
        return f"the hub has no such model ({page}), or it is private: check the spelling, or put {token}"
    if status is not None:
        return f"the hub answered with status {status}; try again later"
    if os.environ.get("HF_HUB_OFFLINE"):
        return "it is not on this machine, and HF_HUB_OFFLINE forbids to fetch it: unset that, or give a directory"
    return f"the hub ({ENDPOINT}) cannot be reached, and it is not on this machine: check the network and HF_ENDPOINT"


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
