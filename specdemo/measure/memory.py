"""Memory told straight: weights and caches by counting bytes, process and device as the system reports them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import torch

_PROCESS = psutil.Process()
CGROUP = Path("/sys/fs/cgroup")  # where Linux shows a container its limits
MB = 1e6  # bytes; decimal, as in the figures of the literature


def weight_bytes(*models: torch.nn.Module) -> int:
    """Bytes of all parameters, buffers and scales of quantized weights.

    Each storage is counted once: tied or shared weights do not count twice.
    """
    storages = {
        storage.data_ptr(): storage.nbytes()
        for model in models
        for tensor in _tensors(model)
        for storage in [tensor.untyped_storage()]
    }
    packed = sum(getattr(module, "packed_bytes", 0) for model in models for module in model.modules())
    return sum(storages.values()) + packed


def _tensors(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from _quantization_state(module)


def _quantization_state(layer: Any) -> Iterable[torch.Tensor]:
    """What bitsandbytes keeps beside a layer's weights, neither as parameters nor as buffers."""
    state = getattr(getattr(layer, "weight", None), "quant_state", None)  # 4 bits
    while state is not None:
        yield from (x for x in (state.absmax, state.code, state.offset) if x is not None)
        state = state.state2
    for owner in (getattr(layer, "weight", None), getattr(layer, "state", None)):  # 8 bits; moves at the first pass
        scales = getattr(owner, "SCB", None)
        if scales is not None:
            yield scales


def process_bytes() -> int:
    """Resident set size of this process."""
    return _PROCESS.memory_info().rss


def device_bytes(device: torch.device) -> int:
    """Bytes in use on all GPUs together, by every process, where `device` is one; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    import torch

    spaces = (torch.cuda.mem_get_info(i) for i in range(torch.cuda.device_count()))
    return sum(total - free for free, total in spaces)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be had: of all GPUs together for a CUDA device, else of this machine or container."""
    if device.type == "cuda":
        import torch

        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    return min([psutil.virtual_memory().available, *_container_free()])


def _container_free(group: Path = CGROUP) -> Iterable[int]:
    """What a container's limit leaves; nothing where there is no limit. File pages that it holds can be given back."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit.isdigit():
        yield max(0, int(limit) - used + int(pages.get("inactive_file", 0)))
