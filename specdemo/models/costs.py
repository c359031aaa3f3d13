"""What a target pass costs by its number of tokens: measured once for a pair, a precision and a machine, then kept."""

from __future__ import annotations

import json
import logging
from hashlib import sha256
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
ROWS = (1, 2, 3, 4, 6, 8, 12, 17)  # tokens of a pass that are measured; between them costs are interpolated
METHOD = 2  # changes with how costs are measured, so that those kept from before are not taken
CALM = 1.3  # times the least seconds that the median may be
_restless: dict[str, Costs] = {}
# Each number of rows is measured so often, in turn, so that a slow moment hits all of them; fewer times, but not fewer
# than the least, where that takes longer than the seconds: somebody is waiting.
ROUNDS, LEAST, SECONDS = 14, 5, 6.0


def costs(loaded: Loaded) -> Costs:
    """From the cache, or measured in a few seconds; kept if nothing disturbed that."""
    here = machine(loaded.target.device)
    key = [
        METHOD,
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
def measure(loaded: Loaded) -> tuple[Costs, bool]:
    """Seconds of passes over 1, 2 ... max(ROWS) tokens, and whether the machine had little else to do meanwhile."""
    target = CachedModel(loaded.target)
    length = min(CONTEXT, target.context - max(ROWS))
    target.forward([0] * length, keep_logits=1)
    rounds: list[list[float]] = []
    while len(rounds) < LEAST or (len(rounds) < ROUNDS and sum(map(sum, rounds)) < SECONDS):
        rounds.append([_seconds(target, n) for n in ROWS])
    seconds = np.array(rounds)
    one = float(np.median(seconds[:, 0]))
    passes = np.interp(range(1, max(ROWS) + 1), ROWS, one * shape(seconds))
    calm = np.median(np.median(seconds, axis=0) / seconds.min(axis=0)) < CALM
    return Costs(tuple(passes.tolist())), bool(calm)


def _seconds(target: CachedModel, rows: int) -> float:
    """What one pass takes; the cache is afterwards as it was."""
    length = len(target)
    synchronize(target.device)
    began = perf_counter()
    target.forward([0] * rows)
    synchronize(target.device)
    taken = perf_counter() - began
    target.keep(length)
    return taken


def shape(seconds: np.ndarray) -> np.ndarray:
    """What passes over ROWS tokens cost in passes over one, from rounds of seconds [rounds, len(ROWS)]; it never falls.

    Each round gives its own ratios, so that a slow moment longer than a round hits both sides. Their medians are drawn
    towards a straight line by as much as chance explains that they lie beside it: bumps of 5% in a table make steps
    look like bargains and cost auto 2% of its speed. What a kernel really does in steps it does in every round, and it
    stays.
    Source: Efron and Morris 1973 (empirical Bayes: shrinking by the share of chance).
    """
    ratios = seconds / seconds[:, :1]
    seen = np.median(ratios, axis=0)
    line = np.polyval(np.polyfit(ROWS, seen, 1), ROWS)
    chance = np.pi / 2 * ratios[:, 1:].var(axis=0).mean() / len(ratios)  # the variance of a median
    beside = ((seen - line) ** 2).sum() / (len(ROWS) - 2)
    real = max(0.0, 1 - chance / beside) if beside > 0 else 0.0
    found = np.maximum.accumulate(line + real * (seen - line))
    return found / found[0]
