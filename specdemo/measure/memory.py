"""Memory told straight: weights and caches by counting bytes, process and device as the system reports them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_PROCESS = psutil.Process()
MB = 1e6  # bytes; decimal, as in the figures of the literature


def weight_bytes(*models: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, each storage counted once: tied or shared weights do not count twice."""
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


def process_bytes() -> int:
    """Resident set size of this process."""
    return _PROCESS.memory_info().rss


def device_bytes(device: torch.device) -> int:
    """Bytes in use on an accelerator, by every process; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total - free
