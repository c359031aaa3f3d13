"""Whether a pair can work here, and what it takes: found out from configs and tokenizers, before a byte of weights.

Every check appends findings; the first refusal is why the pair cannot be loaded. Figures are bytes, shown in GB (1e9).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from specdemo import device
from specdemo.config import Dtype
from specdemo.engine.cache import context_of
from specdemo.measure import memory
from specdemo.models import placement, size, vocabulary
from specdemo.models.files import LoadError, read_config, read_tokenizer
from specdemo.models.findings import Level, Report
from specdemo.models.pairs import GB, ROOM, Pair
from specdemo.models.quantize import Quantization
from specdemo.request import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
CONTEXT = 2048  # tokens that memory is reckoned for where nobody says how many
ATTENTION = {"full_attention", "sliding_attention"}  # kinds whose cache can be rolled back


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model as its small files tell it. quantized: whether its weights will be."""

    name: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    skeleton: PreTrainedModel
    quantized: bool

    @property
    def width(self) -> int:
        """Logit width."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def context(self) -> int | None:
        """Tokens; None where the config does not say."""
        config = self.config.get_text_config()
        return context_of(config) if hasattr(config, "max_position_embeddings") else None


def preflight(pair: Pair, dtype: Dtype, quantization: Quantization | None = None, context: int | None = None) -> Report:
    """Look at a pair. dtype: resolved, "bf16" or "fp32". context: tokens that caches are reckoned for.

    Raises nothing that a pair could be the reason of: what is wrong with it is in the report.
    """
    return examine(pair, dtype, quantization or Quantization(), context)[0]


def examine(
    pair: Pair, dtype: Dtype, quantization: Quantization, context: int | None = None
) -> tuple[Report, list[Candidate]]:
    """The same with what was read of target and draft, for whoever loads them next."""
    report = Report(pair.name, pair.target, pair.draft, dtype, str(quantization))
    candidates: list[Candidate] = []
    if quantization.kind != "none" and not _can_quantize(report):
        return report, candidates
    for name in (pair.target, pair.draft):
        if name is not None:
            try:
                candidates.append(_candidate(name, dtype, quantization, target=not candidates))
            except RequestError as error:  # LoadError, or the embedded weights cannot be had
                report.add(Level.REFUSAL, "files", str(error))
    if report.refusal is not None:
        return report, candidates
    target, draft = candidates[0], candidates[1] if pair.draft is not None else None
    for candidate in candidates:
        _check_architecture(report, candidate)
    _check_vocabulary(report, target, draft)
    _check_contexts(report, target, draft)
    if quantization.kind != "none":
        _check_quantization(report, candidates, quantization)
    if report.refusal is None:
        report.context = min(context or CONTEXT, target.context or CONTEXT)
        _check_memory(report, target, draft)
    return report, candidates


def _candidate(name: str, dtype: Dtype, quantization: Quantization, target: bool) -> Candidate:
    config, tokenizer = read_config(name), read_tokenizer(name)
    quantized = quantization.applies(target)
    try:
        model = size.skeleton(config, DTYPES[dtype], quantization if quantized else None)
    except Exception as error:  # a class may fail on its config in any way
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoadError(f"cannot load {name!r}: it is no causal language model of transformers: {reason}") from error
    return Candidate(name, config, tokenizer, model, quantized)


def _check_architecture(report: Report, candidate: Candidate) -> None:
    config = candidate.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if candidate.skeleton._is_stateful or kinds - ATTENTION:
        what = ", ".join(sorted(kinds - ATTENTION)) or "recurrent"
        report.add(
            Level.REFUSAL,
            "attention",
            f"{candidate.name}: its {what} layers keep a state that cannot be rolled back after a rejection; "
            "choose a model with attention layers only",
        )
        return
    if "local" in getattr(config, "attention_layers", ()):
        sentence = f"{candidate.name}: its local layers hide rows, not positions, and a tree's rows are no positions; "
        report.add(Level.REFUSAL, "attention", sentence + "choose another model")
        return
    if getattr(candidate.config, "quantization_config", None):
        sentence = f"{candidate.name}: its checkpoint is quantized already; choose the unquantized one"
        report.add(Level.REFUSAL, "quantization", sentence)
    if candidate.context is None:
        report.add(Level.REFUSAL, "context", f"{candidate.name}: its config states no context length; choose another")
    window = getattr(config, "sliding_window", None)
    said = f"{candidate.name}: full attention" if not window else f"{candidate.name}: sliding windows of {window:,}"
    if window:
        said += " tokens; the cache keeps all positions, and masks hide what a window hides"
    if getattr(config, "attn_logit_softcapping", None):
        said += "; softcapped scores, computed by the eager kernel"
    report.add(Level.OK, "attention", said)


def _check_vocabulary(report: Report, target: Candidate, draft: Candidate | None) -> None:
    report.shared = min(len(target.tokenizer), target.width)
    if draft is None:
        return
    found = vocabulary.compare(target.tokenizer, draft.tokenizer, target.width, draft.width)
    if found.refusal is not None:
        report.add(Level.REFUSAL, "vocabulary", found.refusal)
        return
    report.shared = found.shared
    report.add(Level.OK, "vocabulary", f"{found.shared:,} ids mean the same in both")
    if found.special:
        some = ", ".join(map(str, found.special[:5])) + (", ..." if len(found.special) > 5 else "")
        report.add(
            Level.WARNING,
            "vocabulary",
            f"{len(found.special)} added or unused ids differ ({some}); the target decides there, so only acceptance "
            "suffers",
        )
    if target.width != draft.width:
        report.add(
            Level.OK,
            "logits",
            f"the logits are {target.width:,} (target) and {draft.width:,} (draft) wide; the difference is padding, "
            "which is never drafted",
        )
    if target.tokenizer.eos_token != draft.tokenizer.eos_token:
        ends = f"{target.tokenizer.eos_token!r} in the target and {draft.tokenizer.eos_token!r} in the draft"
        report.add(Level.WARNING, "vocabulary", f"an answer ends with {ends}; the target's counts")
    if bool(target.tokenizer.chat_template) != bool(draft.tokenizer.chat_template):
        chat, base = (target, draft) if target.tokenizer.chat_template else (draft, target)
        report.add(
            Level.WARNING,
            "chat",
            f"{chat.name} has a chat template and {base.name} has none; they may disagree on how an answer begins",
        )


def _check_contexts(report: Report, target: Candidate, draft: Candidate | None) -> None:
    if draft is None or not target.context or not draft.context:
        return
    if draft.context < target.context:
        report.add(
            Level.WARNING,
            "context",
            f"the draft's context is {draft.context:,} tokens, the target's {target.context:,}: past the draft's the "
            "answer goes on without it",
        )
    else:
        report.add(Level.OK, "context", f"{target.context:,} tokens (target), {draft.context:,} (draft)")


def _can_quantize(report: Report) -> bool:
    if find_spec("bitsandbytes") is not None:
        return True
    report.add(
        Level.REFUSAL, "quantization", "bitsandbytes is not installed: `pip install bitsandbytes`, or do not quantize"
    )
    return False


def _check_quantization(report: Report, candidates: list[Candidate], quantization: Quantization) -> None:
    dtype = DTYPES[report.dtype]
    for candidate in (x for x in candidates if x.quantized):
        total = size.weight_bytes(candidate.skeleton, dtype)
        if stays := size.expert_bytes(candidate.skeleton, dtype):
            report.add(
                Level.REFUSAL,
                "quantization",
                f"{candidate.name}: bitsandbytes cannot quantize experts that lie in one block: {stays / GB:.1f} of "
                f"{total / GB:.1f} GB would stay {report.dtype}; load it unquantized, or choose another target",
            )
        else:
            report.add(
                Level.OK,
                "quantization",
                f"{candidate.name}: {quantization.kind}, {report.dtype} compute; embedding and output head stay "
                f"{report.dtype}",
            )
    if quantization.kind == "int8":
        sentence = "int8 singles out outliers over all tokens of a pass, so the paths can differ by more than rounding"
        report.add(Level.WARNING, "quantization", sentence)
    if device.pick().type == "cpu":
        sentence = f"without a GPU {quantization.kind} saves memory, hardly time: weights are unpacked at every pass"
        report.add(Level.WARNING, "quantization", sentence)


def _check_memory(report: Report, target: Candidate, draft: Candidate | None) -> None:
    """Weights, both paths' caches of the target, and the draft's cache, against what is free."""
    dtype, on = DTYPES[report.dtype], device.pick()
    for candidate, label, caches in ((target, "target", 2), (draft, "draft", 1)):
        if candidate is None:
            continue
        weights = size.weight_bytes(candidate.skeleton, dtype)
        if on.type == "cpu" and dtype is torch.float32:
            weights += size.packed_copy_bytes(candidate.skeleton)
        tokens = min(report.context, candidate.context or report.context)
        cache = caches * size.cached_numbers(candidate.config) * tokens * dtype.itemsize
        report.needed |= {f"{label} weights": weights, f"{label} cache": cache}
    needed = sum(report.needed.values())
    report.free = memory.free_bytes(on)
    parts = ", ".join(f"{name} {count / GB:.2f}" for name, count in report.needed.items())
    where = "GPU memory" if on.type == "cuda" else "memory"
    takes = f"{needed / GB:.2f} GB at {report.context:,} tokens of context ({parts})"
    if needed <= ROOM * report.free:
        report.add(Level.OK, "memory", f"it takes {takes}; {report.free / GB:.1f} GB of {where} are free")
        if on.type == "cuda" and not placement.fits_one(needed):
            report.add(
                Level.WARNING, "placement", "no single GPU holds it: the target's layers are spread over several"
            )
        return
    report.add(
        Level.REFUSAL,
        "memory",
        f"it does not fit: it takes {takes}, and of {report.free / GB:.1f} GB of free {where} at most "
        f"{ROOM * report.free / GB:.1f} may be filled; {_smaller(report)}",
    )


def _smaller(report: Report) -> str:
    ways = []
    if report.dtype == "fp32":
        ways.append("choose bf16")
    if report.quantization == "none":
        ways.append("quantize it")
    ways.append("choose a smaller pair" if report.context <= CONTEXT else "ask for less context")
    return ", or ".join(ways)
