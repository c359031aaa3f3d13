"""What the engine's own overhead is: `python benchmarks/paths.py`. Ratios within one run; this takes some minutes.

1. The plain path against transformers' generate() on the same weights, dtype and prompt.
2. Each path raced against the same path alone, by own clocks.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from sys import path
from threading import Event
from time import perf_counter
from typing import Any

path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
import typer  # noqa: E402
from rich.progress import track  # noqa: E402

from specdemo.engine.race import race  # noqa: E402
from specdemo.measure.metrics import Tally  # noqa: E402
from specdemo.request import RaceRequest  # noqa: E402
from specdemo.run import PATHS, Run, load_for, machine  # noqa: E402

PROMPT = "List ten things to pack for a week of hiking in the mountains."


def main(runs: int = 7, tokens: int = 64, dtype: str = "auto") -> None:
    request = RaceRequest(prompt=PROMPT, max_new_tokens=tokens, dtype=dtype)
    loaded = load_for(request)

    model: Any = loaded.target  # transformers' own annotations hide generate()

    def own_clock(*names: str) -> dict[str, float]:
        """Decode tokens/s of the named paths, run together."""
        run = Run(request, loaded, Event())
        tallies = {name: Tally() for name in names}
        for name, step in race({name: run.paths[name] for name in names}, Event()):
            tallies[name].add(step)
        return {name: tally.decode_tokens_per_s or 0.0 for name, tally in tallies.items()}

    def generate() -> float:
        """Decode tokens/s of transformers, its time to the first token taken out as ours is."""
        prompt = torch.tensor([Run(request, loaded, Event()).task.prompt])

        def seconds(count: int) -> float:
            began = perf_counter()
            answer = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False
            )
            assert answer.shape[1] == prompt.shape[1] + count, "the answer ended early; take another prompt"
            return perf_counter() - began

        first = seconds(1)
        return (tokens - 1) / (seconds(tokens) - first)

    cases: dict[str, Callable[[], dict[str, float]]] = {
        "generate": lambda: {"generate": generate()},
        "solo plain": lambda: own_clock("plain"),
        "solo speculative": lambda: own_clock("speculative"),
        "raced": lambda: own_clock(*PATHS),
    }
    seen: list[dict[str, dict[str, float]]] = []
    for _ in track(range(runs), "Measuring"):
        seen.append({name: case() for name, case in cases.items()})
    solo = {"plain": "solo plain", "speculative": "solo speculative"}
    print(machine(loaded.target.device), loaded.dtype)
    print(f"plain / generate(): {median(r['solo plain']['plain'] / r['generate']['generate'] for r in seen):.3f}")
    for name in PATHS:
        print(f"raced / solo, {name}: {median(r['raced'][name] / r[solo[name]][name] for r in seen):.3f}")


if __name__ == "__main__":
    typer.run(main)
