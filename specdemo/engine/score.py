"""Draft, then score: the draft writes the whole answer, the target only says how probable it finds it.

This is lossy. The text is the draft's own, whatever the target would have said, so every token is marked as
unverified. It is here because it has been published as speculative decoding, and to be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import NOTHING, Stopwatch, end_of_answer, prefill, scores
from specdemo.engine.sampling import Randomness, penalised
from specdemo.engine.types import Finish, Origin, Step, Task, Token
from specdemo.engine.verify import verify

BLOCK = 32  # tokens that the target scores in one pass: enough to cost what one pass over the answer would


@torch.inference_mode()
def draft_then_score(
    target: CachedModel, draft: CachedModel, shared: int, task: Task, rng: Randomness
) -> Iterator[Step]:
    """The draft's answer to `task`, a step for each block that the target scored. shared: ids that both know.

    Raises ValueError where prompt and answer do not fit the draft's context.
    """
    if task.max_new_tokens == 0:
        return
    watch = Stopwatch(target.device)
    answer: list[int] = []
    # 1. Prefill of both models.
    before = yield from prefill(target, task, watch)
    prompt = [min(id, shared - 1) for id in task.prompt]
    for logits in draft.prefill(prompt):
        last = logits[:, :shared]
    watch.lap("draft")
    while True:
        # 2. The draft writes a block.
        block: list[int] = []
        finish: Finish | None = None
        while len(block) < BLOCK and finish is None:
            if answer:
                last = draft.forward(answer[-1:])[:, :shared]
            decided = penalised(last, [*prompt, *answer], [()], task.sampling.repetition_penalty)
            token = verify(NOTHING, decided, task.sampling, rng).token
            assert token is not None
            block.append(token)
            answer.append(token)
            _, finish = end_of_answer(answer, 1, task)
        watch.lap("draft")
        # 3. One target pass scores it.
        rows = torch.cat([before, target.forward(block)])
        before = rows[-1:]
        found = scores(rows[:-1], rows[:-1], block)
        watch.lap("verify")
        tokens = tuple(map(Token, block, [Origin.UNVERIFIED] * len(block), *found))
        yield watch.stamped(Step(tokens, finish=finish), target.cache_bytes + draft.cache_bytes)
        if finish:
            return
        watch.start()
