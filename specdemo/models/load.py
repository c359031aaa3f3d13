"""A pair in memory: weights in one dtype on one device, the tokenizer, and what ends an answer."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from specdemo.config import Dtype
from specdemo.engine.cache import CachedModel, context_of
from specdemo.engine.head import FeatureHead, read_head
from specdemo.engine.ngram import NgramTable
from specdemo.models import kernels, placement
from specdemo.models.files import LoadError, place, read_config, read_tokenizer
from specdemo.models.findings import Report
from specdemo.models.pairs import Pair
from specdemo.models.preflight import DTYPES, Candidate, examine
from specdemo.models.quantize import Quantization

transformers_logging.disable_progress_bar()  # a page or a JSON line is what the terminal is for


class DraftError(LoadError):
    """The target is there, but what drafts for it cannot be loaded."""


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
    quantization: Quantization

    @property
    def vocabulary(self) -> int:
        """The target's logit width."""
        return self.target.config.get_text_config().vocab_size

    @property
    def context(self) -> int:
        """Tokens that the target can attend to."""
        return context_of(self.target.config.get_text_config())

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


def load(pair: Pair, dtype: Dtype, quantization: Quantization | None = None) -> Loaded:
    """Load a pair, or return it if it is one of the two used last. dtype: "bf16" or "fp32", already resolved.

    Raises LoadError with the preflight's reason, before any weights are read or fetched, if the pair cannot work
    here; and if weights are missing or broken, DraftError if they are not the target's.
    """
    return _loaded(pair, dtype, quantization or Quantization())


@lru_cache(maxsize=2)
def _loaded(pair: Pair, dtype: Dtype, quantization: Quantization) -> Loaded:
    report, candidates = _examined(pair, dtype, quantization)
    target = _model(candidates[0], report, quantization)
    tokenizer = candidates[0].tokenizer
    try:
        draft = _model(candidates[1], report, quantization, beside=target) if pair.draft is not None else None
        ngram = NgramTable.read(pair.ngram) if pair.ngram else NgramTable()
        head = read_head(pair.head, target) if pair.head else None
        if head is not None:
            kernels.pack(head)
            _warm(head, features=True)
    except (LoadError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DraftError(f"the draft cannot be loaded: {reason}") from error
    eos = _eos(target, tokenizer)
    return Loaded(pair, target, draft, head, ngram, tokenizer, dtype, eos, report.shared, quantization)


def _examined(pair: Pair, dtype: Dtype, quantization: Quantization) -> tuple[Report, list[Candidate]]:
    report, candidates = examine(pair, dtype, quantization)
    if report.refusal is not None and report.needed and _loaded.cache_info().currsize:
        _loaded.cache_clear()  # the pairs used last are what fills the memory
        gc.collect()
        report, candidates = examine(pair, dtype, quantization)
    if report.refusal is not None:
        raise LoadError(report.refusal)
    return report, candidates


def _model(
    candidate: Candidate, report: Report, quantization: Quantization, beside: PreTrainedModel | None = None
) -> PreTrainedModel:
    """One model of a pair on its device, ready to decode; beside: the target, for a draft."""
    needed = report.needed_by("target" if beside is None else "draft")
    try:
        where = placement.place(
            candidate.skeleton,
            DTYPES[report.dtype],
            needed,
            placement.free(),
            prefer=None if beside is None else beside.device.index,
        )
    except LoadError as error:
        raise LoadError(f"cannot load {candidate.name!r}: {error}") from error
    model = unpacked(candidate.name, report.dtype, quantization if candidate.quantized else None, where)
    kernels.pack(model)
    _warm(model)
    return model


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a model id, a directory or "embedded". Raises LoadError."""
    return read_tokenizer(name)


def unpacked(
    name: str,
    dtype: Dtype = "fp32",
    quantization: Quantization | None = None,
    where: placement.Map | None = None,
) -> PreTrainedModel:
    """The model of an id, a directory or "embedded" as transformers loads it, on the CPU if `where` does not say.

    Raises LoadError.
    """
    config = read_config(name)
    # Softcapped attention scores exist in the eager kernel only; elsewhere transformers' own choice is best.
    attention = "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            _source(name),
            trust_remote_code=False,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
            config=config,
            device_map=where,
            quantization_config=quantization.config(DTYPES[dtype]) if quantization else None,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LoadError(f"cannot load {name!r}: {reason}") from error
    return model.eval()


def _source(name: str) -> str:
    folder = place(name)
    return str(folder) if folder.is_dir() else name


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
