"""What a run ran on, as a trace and a report name it."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers

from specdemo import __version__


def machine(on: torch.device) -> dict[str, Any]:
    """Names and versions; processor and accelerator in the maker's words."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(on) if on.type == "cuda" else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "specdemo": __version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()
