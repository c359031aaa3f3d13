"""Which GPU holds what. A target larger than one GPU is spread over several; nothing is ever put off to CPU or disk."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import infer_auto_device_map
from accelerate.utils import CustomDtype
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from transformers import PreTrainedModel

from specdemo.models.files import LoadError
from specdemo.models.pairs import GB, ROOM

Map = dict[str, Any]  # module -> GPU number, as accelerate and transformers take it


def free() -> dict[int, int]:
    """Free bytes of every GPU."""
    return {i: torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())}


def fits_one(needed: int) -> bool:
    """Whether some GPU holds `needed` bytes by itself."""
    return any(needed <= ROOM * size for size in free().values())


def place(
    skeleton: PreTrainedModel, dtype: torch.dtype, needed: int, gpus: dict[int, int], prefer: int | None = None
) -> Map | None:
    """Where each module goes: all on the GPU `prefer`, or else the roomiest, if it holds `needed` bytes, else spread.

    skeleton: on the meta device, with its quantized layers. needed: weights and caches. gpus: free bytes by number,
    in the order in which they are filled. None without a GPU: all goes on the CPU.
    Raises LoadError if modules would be left for CPU or disk, where every pass would wait for them.
    """
    if not gpus:
        return None
    for gpu in sorted(gpus, key=lambda gpu: (gpu != prefer, -gpus[gpu])):
        if needed <= ROOM * gpus[gpu]:
            return {"": gpu}
    quantized: dict[str, Any] = {}
    for name, layer in skeleton.named_modules():
        if isinstance(layer, Linear4bit):
            quantized[f"{name}.weight"] = CustomDtype.INT4
        elif isinstance(layer, Linear8bitLt):
            quantized[f"{name}.weight"] = torch.int8
    found: Map = infer_auto_device_map(
        skeleton,
        max_memory={gpu: int(ROOM * size) for gpu, size in gpus.items()},
        no_split_module_classes=list(skeleton._no_split_modules or ()),
        dtype=dtype,
        special_dtypes=quantized,
    )
    left = [name for name, where in found.items() if where in ("cpu", "disk")]
    if left:
        raise LoadError(
            f"{len(left)} of its modules (from {left[0]} on) would not fit the GPUs' "
            f"{ROOM * sum(gpus.values()) / GB:.1f} GB and be left to the CPU; quantize it or choose a smaller target"
        )
    return found
