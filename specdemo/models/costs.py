"""What a target pass costs by its number of tokens: measured once for a pair, a precision and a machine, then kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from statistics import median
from time import perf_counter

import numpy as np
import torch

from specdemo.engine.auto import Costs
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import synchronize
from specdemo.measure.machine import machine
from specdemo.models import embedded
from specdemo.models.load import Loaded

log = logging.getLogger(__name__)
CONTEXT = 128  # tokens in the cache while measuring: about the middle of a short answer
ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 17)  # tokens of a pass that are measured; between them costs are interpolated
CALM = 1.3  # times the least seconds that the median may be
_restless: dict[str, Costs] = {}
ROUNDS = 7  # each number of rows is measured so often, in turn, so that a slow moment hits all of them


def costs(loaded: Loaded) -> Costs:
    """From the cache, or measured in a few seconds; kept if nothing disturbed that."""
    here = machine(loaded.target.device)
    key = [
        loaded.pair.target,
        loaded.dtype,
        str(loaded.quantization),
        *(here[k] for k in ("processor", "threads", "accelerator", "torch")),
    ]
    name = sha256(json.dumps(key).encode()).hexdigest()[:16]
    path = embedded.home() / "costs" / f"{name}.json"
    try:
        return Costs(tuple(json.loads(path.read_text())["verify"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if name in _restless:
        return _restless[name]
    found, calm = measure(loaded)
    if not calm:
        _restless[name] = found  # good enough for this process, but not to be kept
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"key": key, "verify": found.verify}))
        part.replace(path)
    except OSError as error:
        log.warning("costs are not kept: %s", error)
    return found


@torch.inference_mode()
def measure(loaded: Loaded, rows: Sequence[int] = ROWS, rounds: int = ROUNDS) -> tuple[Costs, bool]:
    """Least seconds of passes over each number of rows, and whether the machine had little else to do meanwhile.

    The least, because whatever else runs only adds. More rows never cost less.
    """
    target = CachedModel(loaded.target)
    length = min(CONTEXT, target.context - max(rows))
    target.forward([0] * length, keep_logits=1)
    seconds: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(rounds):
        for n in rows:
            synchronize(target.device)
            began = perf_counter()
            target.forward([0] * n)
            synchronize(target.device)
            seconds[n].append(perf_counter() - began)
            target.keep(length)
    least = list(accumulate((min(seconds[n]) for n in rows), max))
    calm = median(median(seconds[n]) / min(seconds[n]) for n in rows) < CALM
    return Costs(tuple(np.interp(range(1, max(rows) + 1), rows, least).tolist())), calm
