"""A pair in memory: weights in one dtype on one device, the tokenizer, and what ends an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from specdemo import device
from specdemo.config import Dtype
from specdemo.engine.cache import CachedModel
from specdemo.engine.head import FeatureHead, read_head
from specdemo.engine.ngram import NgramTable
from specdemo.models import embedded, kernels
from specdemo.models.pairs import Pair
from specdemo.request import RequestError

# The loaders below are told trust_remote_code=False: left unsaid, transformers asks on the terminal and may hear a yes.
transformers_logging.disable_progress_bar()  # a page or a JSON line is what the terminal is for

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class LoadError(RequestError):
    """The pair cannot be used; the message says why and what to change."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pair ready to decode. shared: how many ids target and draft have in common, counted from 0.

    ngram: the pair's table, empty where it has none.
    """

    pair: Pair
    target: PreTrainedModel
    draft: PreTrainedModel | None
    head: FeatureHead | None
    ngram: NgramTable
    tokenizer: Tokenizer
    dtype: Dtype
    eos: frozenset[int]
    shared: int

    @property
    def vocabulary(self) -> int:
        """The target's logit width."""
        return self.target.config.get_text_config().vocab_size

    @property
    def context(self) -> int:
        """Tokens that the target can attend to."""
        return self.target.config.get_text_config().max_position_embeddings

    def without_models(self) -> Loaded:
        """What names and decodes, small enough to be sent to another process."""
        return replace(self, target=None, draft=None, head=None, ngram=NgramTable())  # type: ignore[arg-type]


def resolve_dtype(dtype: Dtype, on: torch.device) -> Dtype:
    """auto -> bf16 where the processor or GPU computes in it, else fp32.

    A processor without such instructions converts every bf16 weight to float32 on the way: it saves memory traffic
    at one token, and loses several times over wherever a pass has many tokens (a prefill, a verification).
    """
    if dtype != "auto":
        return dtype
    if on.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    capabilities = torch.cpu.get_capabilities()
    native = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    return "bf16" if any(capabilities.get(name) for name in native) else "fp32"


@lru_cache(maxsize=2)
def load(pair: Pair, dtype: Dtype) -> Loaded:
    """Load a pair, or return it if it is one of the two used last. dtype: "bf16" or "fp32", already resolved.

    Raises LoadError if the draft's tokenizer is not the target's, or files are missing or broken.
    """
    tokenizer, target = _model(pair.target, dtype)
    draft = None
    shared = len(tokenizer)
    if pair.draft is not None:
        draft_tokenizer, draft = _model(pair.draft, dtype)
        shared = _shared_ids(tokenizer, draft_tokenizer, draft)
    ngram = NgramTable.read(pair.ngram) if pair.ngram else NgramTable()
    head = read_head(pair.head, target) if pair.head else None
    if head is not None:
        kernels.pack(head)
        _warm(head, features=True)
    return Loaded(pair, target, draft, head, ngram, tokenizer, dtype, _eos(target, tokenizer), shared)


def _model(name: str, dtype: Dtype) -> tuple[Tokenizer, PreTrainedModel]:
    tokenizer, model = tokenizer_of(name), unpacked(name, dtype)
    model.to(device.pick())  # type: ignore[arg-type]
    kernels.pack(model)
    _warm(model)
    return tokenizer, model


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a model id, a directory or "embedded". Raises LoadError."""
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(_source(name), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot load {name!r}: {str(error).splitlines()[0]}") from error
    return tokenizer


def unpacked(name: str, dtype: Dtype = "fp32") -> PreTrainedModel:
    """The model of an id, a directory or "embedded" as transformers loads it, on the CPU. Raises LoadError."""
    source = _source(name)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        # Softcapped attention scores exist in the eager kernel only; elsewhere transformers' own choice is best.
        attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source, dtype=DTYPES[dtype], attn_implementation=attention, config=config, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot load {name!r}: {str(error).splitlines()[0]}") from error
    return model.eval()


def _source(name: str) -> str:
    place = embedded.fetch() if name == "embedded" else Path(name).expanduser()
    return str(place) if place.is_dir() else name


@torch.inference_mode()
def _warm(model: PreTrainedModel | FeatureHead, features: bool = False) -> None:
    """One long and some short passes: the path that happens to go first must not pay for what is set up only once."""
    cached = CachedModel(model)
    for count in (32, 5, 3, 1):
        width = model.config.get_text_config().hidden_size
        states = torch.zeros(count, width, dtype=model.dtype, device=model.device) if features else None
        cached.forward([0] * count, features=states)


def _eos(model: PreTrainedModel, tokenizer: Tokenizer) -> frozenset[int]:
    ids = model.generation_config.eos_token_id if model.generation_config else tokenizer.eos_token_id
    return frozenset([ids] if isinstance(ids, int) else ids or [])


def _shared_ids(target: Tokenizer, draft: Tokenizer, model: PreTrainedModel) -> int:
    """Compare two vocabularies by their token strings; equal sizes prove nothing.

    Returns how many leading ids mean the same in both. Raises LoadError and names the first id that does not,
    unless the difference is only that one of the two ends earlier.
    """
    ours = {id: token for token, id in target.get_vocab().items()}
    theirs = {id: token for token, id in draft.get_vocab().items()}
    shared = min(max(ours) + 1, max(theirs) + 1, model.config.get_text_config().vocab_size)
    for id in range(shared):
        if ours.get(id) != theirs.get(id):
            raise LoadError(
                f"the draft's tokenizer is not the target's: id {id} is {theirs.get(id)!r} in the draft and "
                f"{ours.get(id)!r} in the target; choose a draft of the same model family"
            )
    return shared
