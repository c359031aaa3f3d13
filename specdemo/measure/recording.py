"""A race as far as it has got: what a live run and a replay have in common, for whoever draws or sums it up."""

from specdemo.engine.types import Finish, Step
from specdemo.measure.metrics import Lossless, Tally, lossless, speed_up
from specdemo.measure.trace import PATHS, Trace


class Recording:
    """`trace` and the figures folded from the steps taken so far, `tallies` by path.

    A live race takes each step as it is written into the trace; a replay takes those of a whole trace one by one.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.tallies = {name: Tally() for name in PATHS}

    def take(self, name: str, step: Step) -> None:
        """Take the next step of path `name`."""
        self.tallies[name].add(step)

    def pieces(self, name: str, step: Step) -> list[str]:
        """The text of each token of `step`, the one that path `name` took last."""
        end = self.tallies[name].tokens
        return self.trace.pieces[name][end - len(step.tokens) : end]

    @property
    def lossless(self) -> Lossless:
        greedy = self.trace.settings["temperature"] == 0
        return lossless(self.tallies["plain"], self.tallies["speculative"], greedy)

    @property
    def failure(self) -> str | None:
        """How a path broke, if one did."""
        return next((step.note or "" for _, step in self.trace.steps if step.finish is Finish.FAILED), None)

    @property
    def speed_up(self) -> float | None:
        return speed_up(self.tallies["plain"], self.tallies["speculative"])


def side_by_side(trace: Trace) -> list[tuple[float, str, Step]]:
    """All steps as (own-clock seconds at its end, path, step) in the order in which they end.

    As if each path had a device of its own and both began at once: what a race on one device cannot show in real time.
    """
    clocks = dict.fromkeys(PATHS, 0.0)
    ended = []
    for name, step in trace.steps:
        clocks[name] += step.seconds
        ended.append((clocks[name], name, step))
    return sorted(ended, key=lambda end: end[0])
