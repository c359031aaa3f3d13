"""The embedded target's small draft model: layers from the repository on the target's embedding.

The repository holds the layers only; put together, they are an ordinary checkpoint in the cache folder, which any
program that loads Llama models can use.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.models import embedded
from specdemo.models.pairs import WEIGHTS

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

LAYERS = WEIGHTS / "embedded-draft.safetensors"
STALE_S = 600  # nobody takes so long to put a checkpoint together
FOLDER = "smollm2-135m-draft-"  # and the beginning of the layers' hash


def fetch() -> Path:
    """The folder of the checkpoint; put together in a few seconds if it is not there yet.

    Raises FetchError where the target cannot be had or the cache cannot be written.
    """
    source = embedded.fetch()
    folder = embedded.home() / f"{FOLDER}{sha256(LAYERS.read_bytes()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = AutoModelForCausalLM.from_pretrained(source, trust_remote_code=False)
    part = None
    for left in embedded.home().glob(".draft-*"):  # by a process that was killed
        if time.time() - left.stat().st_mtime > STALE_S:
            shutil.rmtree(left, ignore_errors=True)
    try:
        part = Path(tempfile.mkdtemp(prefix=".draft-", dir=embedded.home()))
        read_layers(LAYERS, target).save_pretrained(part)
        AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(part)
        part.chmod(0o755)
        for old in embedded.home().glob(f"{FOLDER}*"):
            if old != folder:  # else another process was faster, and may be loading it
                shutil.rmtree(old, ignore_errors=True)
        part.replace(folder)  # whole or not there
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise embedded.FetchError(f"cannot write the draft model to {embedded.home()}: {error}") from error
    finally:
        if part:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def cut(target: Any, layers: Sequence[int]) -> LlamaForCausalLM:
    """A model of the target's `layers`, on its embedding. Raises ValueError for a target that cannot be cut."""
    from transformers import LlamaForCausalLM

    config = deepcopy(target.config)
    if config.model_type != "llama" or not config.tie_word_embeddings:
        raise ValueError("only targets of the Llama family whose output head is their embedding can be cut")
    config.num_hidden_layers = len(layers)
    small = LlamaForCausalLM(config)
    weights = target.state_dict()
    own = {name: weights[name] for name in ("model.embed_tokens.weight", "model.norm.weight")}
    for new, old in enumerate(layers):
        prefix = f"model.layers.{old}."
        own |= {f"model.layers.{new}.{n.removeprefix(prefix)}": w for n, w in weights.items() if n.startswith(prefix)}
    small.load_state_dict(own, strict=False)
    small.tie_weights()
    small.get_input_embeddings().weight.requires_grad_(False)
    return small


def write_layers(small: LlamaForCausalLM, path: Path, metadata: dict[str, str]) -> None:
    """Write everything but the embedding, in half precision."""
    from safetensors.torch import save_file

    own = {
        n: w.half().contiguous().cpu() for n, w in small.state_dict().items() if "embed" not in n and "lm_head" not in n
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(own, part, metadata)
    part.replace(path)


def read_layers(path: Path, target: Any) -> LlamaForCausalLM:
    """The small model on the target's embedding, float32."""
    from safetensors.torch import load_file

    own = load_file(path)
    count = 1 + max(int(name.split(".")[2]) for name in own if name.startswith("model.layers."))
    small = cut(target, range(count))
    small.load_state_dict({name: weight.float() for name, weight in own.items()}, strict=False)
    return small
