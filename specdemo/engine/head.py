"""A feature-level draft: one decoder layer that continues the target's own hidden states.

At position t it reads the target's last hidden state there and the embedding of the *next* token, and predicts the
hidden state of t + 1, hence the token at t + 2. What it predicted takes the place of the target's state for the
positions that it drafts itself. Source: Li et al. 2024 (EAGLE), section 4.1. Shapes: B batch, N rows, D hidden size,
R ids of the reduced vocabulary that it can draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Cache, LlamaModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from specdemo.engine.cache import CachedModel
from specdemo.engine.drafters import BRANCHES, FLOOR, Draft, grow
from specdemo.engine.ngram import NgramModel
from specdemo.engine.types import Origin

# What the n-gram model's p weighs against the head's, by the ids that it matches in the text so far: the weights under
# which held-out answers are most probable. From a longer match on it drafts without asking the head.
NGRAM_WEIGHTS = (0.3, 0.25, 0.5)
SURE = 0.5  # p of the n-gram model's best token from which the head, asked as well, would cost more than it changes
MIXED_DEPTH = 1  # tokens that the head looks ahead beside an n-gram model, which knows for nothing what may come next
WIDTH = 3  # nodes of one depth that it looks behind
WORTH = 0.25  # least probability that a whole depth must have, to be worth a pass of the head


# Path from the last committed token -> its children with p and who says so.
Known = dict[tuple[int, ...], list[tuple[int, float, Origin]]]


class FeatureHead(nn.Module):
    """Called like a causal language model with a second input, `features`; logits are over `ids` [R] only.

    embedding [V, D] and output [R, D] are the target's own and are not trained.
    """

    def __init__(self, config: Any, ids: torch.Tensor, embedding: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__()
        self.config: Any = deepcopy(config)
        self.config.num_hidden_layers = 1
        width = self.config.hidden_size
        self.join = nn.Linear(2 * width, width)
        self.body = LlamaModel(self.config)
        self.body.set_input_embeddings(nn.Identity())  # it is given embeddings
        self.embedding = nn.Embedding.from_pretrained(embedding, freeze=True)
        self.output = nn.Linear(width, len(ids), bias=False)
        self.output.weight = nn.Parameter(output, requires_grad=False)
        self.ids: torch.Tensor
        self.register_buffer("ids", ids)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def trained(self) -> dict[str, torch.Tensor]:
        """The weights that are the head's own, to be written down."""
        own = self.state_dict()
        return {name: own[name] for name in own if name.split(".")[0] in ("join", "body", "ids")}

    def states(self, ids: torch.Tensor, features: torch.Tensor, **options: Any) -> torch.Tensor:
        """Predicted hidden states [B, N, D] of the positions after those of `features`; ids [B, N] are one ahead."""
        inputs = self.join(torch.cat([self.embedding(ids), features.to(self.dtype)], dim=-1))
        predicted: torch.Tensor = self.body(inputs_embeds=inputs, **options).last_hidden_state
        return predicted

    def forward(
        self,
        ids: torch.Tensor,
        features: torch.Tensor,
        cache: Cache,
        logits_to_keep: int,
        output_hidden_states: bool = True,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        states = self.states(ids, features, cache=cache, **options)
        return CausalLMOutputWithPast(logits=self.output(states[:, -logits_to_keep:]), hidden_states=(states,))


def write_head(head: FeatureHead, path: Path, metadata: dict[str, str]) -> None:
    """Write the head's own weights, in half precision."""
    own = {name: x.half() if x.is_floating_point() else x for name, x in head.trained().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file({name: x.contiguous().cpu() for name, x in own.items()}, part, metadata)
    part.replace(path)


def read_head(path: Path, target: Any) -> FeatureHead:
    """A head for `target`, in its dtype and on its device. The target's output head must be its embedding.

    Raises ValueError if the file does not hold exactly a head's own weights.
    """
    own = load_file(path)
    embedding = target.get_input_embeddings().weight.detach()
    head = FeatureHead(target.config, own["ids"], embedding, embedding[own["ids"]].clone())
    if own.keys() != head.trained().keys():
        raise ValueError(f"{path} is no head for this target: {sorted(own.keys() ^ head.trained().keys())}")
    head.load_state_dict(own, strict=False)  # embedding and output are the target's
    return head.to(target.device, target.dtype).eval()


class HeadDraft:
    """Proposes the tree that the head, mixed with an n-gram model, holds most probable.

    The head runs once per depth over the most probable nodes; behind those that it did not look at, the n-gram model
    goes on alone: beside one, the head speaks of the next token only. target: the cached target of the same path, still
    empty: it is told to keep its states.
    alone: the head drafts without the n-gram model. branches: children of a node; 1 makes it a chain.
    """

    def __init__(
        self,
        head: CachedModel,
        target: CachedModel,
        ngram: NgramModel,
        floor: float = FLOOR,
        alone: bool = False,
        branches: int = BRANCHES,
    ) -> None:
        self.head = head
        self.target = target
        target.keep_states()
        self.ngram = ngram
        self.floor = floor
        self.alone = alone
        self.branches = branches
        self._ids: list[int] = head.model.ids.tolist()

    @property
    def models(self) -> tuple[FeatureHead]:
        return (self.head.model,)

    @property
    def table_bytes(self) -> int:
        return 0 if self.alone else self.ngram.table.nbytes

    @property
    def cache_bytes(self) -> int:
        return self.head.cache_bytes

    def begin(self, prompt: Sequence[int]) -> None:
        self.ngram.begin()
        self.ngram.read(prompt)
        self.head.keep(0)
        if len(prompt) > 1:
            self._follow(prompt)

    def propose(self, tokens: Sequence[int], budget: int) -> Draft:
        self.ngram.read(tokens)
        context = tuple(tokens[-self.ngram.longest :])
        known: Known = {}
        if self.alone or self._unsure(context):
            logits, trunk = self._follow(tokens), len(tokens) - 1
            known = self._look_ahead(context, logits, budget if self.alone else MIXED_DEPTH)
            self.head.keep(trunk)
        start = len(context)

        def expand(_node: int, context: tuple[int, ...]) -> Iterable[tuple[int, float, Origin]]:
            found = known.get(context[start:])
            if found is None:
                return ((id, p, Origin.NGRAM) for id, p in self._next(context, self.branches))
            return found

        return grow(context, expand, budget, self.floor)

    def _unsure(self, context: tuple[int, ...]) -> bool:
        """Whether the n-gram model knows so little of what comes next that the head is worth its pass."""
        best = self.ngram.next(context, 1)
        return self.ngram.matched(context) < len(NGRAM_WEIGHTS) and (not best or best[0][1] < SURE)

    def _follow(self, tokens: Sequence[int]) -> torch.Tensor:
        """Read what was committed since the last time; logits [1, R] for the token behind `tokens`."""
        start, end = len(self.head), len(tokens) - 1
        return self.head.forward(tokens[start + 1 :], keep_logits=1, features=self.target.states[start:end])

    def _look_ahead(self, context: tuple[int, ...], logits: torch.Tensor, depth: int) -> Known:
        """Path from the last committed token -> its children, for every node that the head looked behind."""
        known: Known = {}
        level: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        rows: dict[tuple[int, ...], int] = {(): -1}  # path -> row of the head's tree
        trunk = len(self.head)
        for remaining in reversed(range(depth)):
            ahead: list[tuple[tuple[int, ...], float]] = []
            for (path, p), (ids, shares) in zip(level, self._top(logits), strict=True):
                known[path] = self._mixed(context + path, ids, shares)
                ahead += [((*path, id), p * share) for id, share, _ in known[path]]
            ahead.sort(key=lambda node: -node[1])
            level = [node for node in ahead[:WIDTH] if node[1] >= self.floor]
            full = len(self.head) + len(level) > self.head.context  # rows of all branches, not positions, fill it
            if not remaining or full or sum(p for _, p in level) < WORTH:
                break
            parents = [rows[path[:-1]] for path, _ in level]
            first = len(self.head) - trunk
            rows |= {path: first + i for i, (path, _) in enumerate(level)}
            features = self.head.states[[trunk + parent for parent in parents]]
            logits = self.head.forward([path[-1] for path, _ in level], parents, features=features)
        return known

    def _top(self, logits: torch.Tensor) -> list[tuple[list[int], list[float]]]:
        """Of each row of logits [N, R] the most probable ids (of the target's vocabulary) with their p."""
        top = logits.softmax(-1).topk(min(2 * BRANCHES, len(self._ids)), dim=-1)
        return [
            ([self._ids[i] for i in ids], shares)
            for ids, shares in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]

    def _mixed(self, context: tuple[int, ...], ids: list[int], shares: list[float]) -> list[tuple[int, float, Origin]]:
        """Children by the mixture of both; the origin is whoever gave the larger part."""
        weight = 0.0 if self.alone else NGRAM_WEIGHTS[self.ngram.matched(context[-self.ngram.longest :])]
        ours = {id: (1 - weight) * p for id, p in zip(ids, shares, strict=True)}
        theirs = {id: weight * p for id, p in self._next(context, 2 * BRANCHES)}
        mixed = [
            (
                id,
                ours.get(id, 0.0) + theirs.get(id, 0.0),
                Origin.DRAFT if ours.get(id, 0.0) >= theirs.get(id, 0.0) else Origin.NGRAM,
            )
            for id in ours | theirs
        ]
        return sorted(mixed, key=lambda child: (-child[1], child[0]))[: self.branches]

    def _next(self, context: tuple[int, ...], count: int) -> list[tuple[int, float]]:
        return self.ngram.next(context[-self.ngram.longest :], count) if not self.alone else []
