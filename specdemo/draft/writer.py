"""Many sequences at once, written by the target itself.

A sequence is: system block and the opening of a user's turn (fixed), the first words of a message (one of `OPENERS`,
so that the mixture of kinds is wide), the rest of the message (sampled), the end of the turn, the answer. Half of the
answers are greedy, as a race by default is; half are sampled. Continuation without a template is one of the kinds.

Each sequence has a slot of a batch; a slot that has finished starts the next sequence, so none waits for the longest.
Shapes: B slots, T positions, V vocabulary.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.cache_utils import CacheLayerMixin

from specdemo.draft.answers import RAW, Row, opening_of
from specdemo.engine.cache import CachedModel
from specdemo.text import encode

MESSAGE, ANSWER = 96, 220  # tokens of a message and of an answer, at most
TOP_K, TEMPERATURE = 50, 0.8  # of a sampled answer; a message is sampled at temperature 1

# Kind -> first words of a message. An empty opener leaves the whole message to the target.
OPENERS: dict[str, Sequence[str]] = {
    "any": [""] * 4,
    "explain": ["Explain", "What is the difference between", "How does", "Why do", "What happens when", "Describe"],
    "list": ["List ten", "Give me five ideas for", "Name six", "What are the steps to", "What are the best ways to"],
    "write": [
        "Write a short, polite email",
        "Write a product description for",
        "Write a poem about",
        "Tell a short story about",
        "Write a cover letter for",
        "Write a paragraph about",
    ],
    "code": [
        "Write a Python function that",
        "Write a Python class for",
        "Write a SQL query that",
        "Write a JavaScript function that",
        "Write an HTML page with",
        "Write a shell script that",
    ],
    "copy": [
        "Rewrite the following sentences in the future tense:",
        "Rewrite this text in a formal style:",
        "Repeat this list in alphabetical order:",
        "Correct the grammar in this paragraph:",
        "Fix the spelling in this text and return all of it:",
    ],
    "summarise": [
        "Summarise this text in one sentence:",
        "Summarize the following passage:",
        "What is the main idea of",
    ],
    "answer": ["According to this text,", "Read the text and answer the question:", "Who was", "Is it true that"],
    "maths": ["A car travels", "If a book costs", "Solve the equation", "Calculate", "A farmer has"],
    "chat": ["I feel", "Can you recommend", "I need advice about", "My friend", "Hello!"],
    "other": [
        "Translate into Spanish:",
        "Translate into French:",
        "Return a JSON object with",
        "Make a Markdown table that compares",
    ],
    RAW: [
        "The future of",
        "In recent years,",
        "Scientists have",
        "The history of",
        "One day,",
        "# Introduction\n\n",
        "Technology is",
        "Education is",
        "It is important to",
    ],
}


class _SlotLayer(CacheLayerMixin):
    """Keys and values [B, heads, T, head_dim] of slots that are filled to different lengths."""

    is_sliding = False

    def __init__(self, positions: torch.Tensor) -> None:
        super().__init__()
        self.positions = positions  # [B]: where the next token of each slot goes
        self.limit = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None
        slots = torch.arange(len(self.positions))
        self.keys[slots, :, self.positions] = key_states[:, :, 0]
        self.values[slots, :, self.positions] = value_states[:, :, 0]
        return self.keys[:, :, : self.limit], self.values[:, :, : self.limit]

    def get_seq_length(self) -> int:
        return self.limit - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.limit, 0

    def get_max_length(self) -> int:
        return -1


def _grouped_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """One query token a slot: the query heads that share a key head become rows, so no key is copied."""
    slots, heads, _, width = query.shape
    grouped = query.view(slots, key.shape[1], heads // key.shape[1], width)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"))
    return out.reshape(slots, 1, heads, width), None


AttentionInterface.register("slots", _grouped_attention)


@dataclass(slots=True)
class _Slot:
    """What one sequence of the batch is at. forced: ids to be fed before anything is sampled."""

    kind: str
    greedy: bool
    forced: deque[int]
    ids: list[int] = field(default_factory=list)
    message: int | None = None  # tokens before the answer, once known

    @property
    def answering(self) -> bool:
        return self.message is not None and not self.forced


class Writer:
    """Writes sequences with `model`, `slots` at a time. Iterate it for finished rows, without end."""

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer, slots: int, seed: int) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.pick = random.Random(seed)
        self.generator = torch.Generator(model.device).manual_seed(seed)
        self.opening, self.turn = opening_of(tokenizer)
        self.end = self.turn[0]
        self.openers = {kind: [encode(tokenizer, o, chat=False) for o in texts] for kind, texts in OPENERS.items()}
        self.positions = torch.zeros(slots, dtype=torch.long, device=model.device)
        self.length = len(self.opening) + MESSAGE + len(self.turn) + ANSWER + 8
        width = model.config.get_text_config().hidden_size
        self.states = torch.zeros(slots, self.length, width, dtype=torch.float16, device=model.device)
        self.layers = self._buffers(slots)
        self.cache = Cache(layers=[*self.layers])
        self.slots = [self._start(i) for i in range(slots)]

    @torch.inference_mode()
    def _buffers(self, slots: int) -> list[_SlotLayer]:
        """One buffer a layer, the fixed opening's keys and values already in every slot."""
        once = CachedModel(self.model)
        once.forward(self.opening)
        layers = []
        for source in once.layers:
            assert source.keys is not None and source.values is not None
            layer = _SlotLayer(self.positions)
            layer.keys, layer.values = (
                x.new_zeros(slots, x.shape[1], self.length, x.shape[3]) for x in (source.keys, source.values)
            )
            layer.is_initialized = True
            layers.append(layer)
        self.prefix = [(s.keys[:, :, : len(self.opening)], s.values[:, :, : len(self.opening)]) for s in once.layers]  # type: ignore[index]
        return layers

    @torch.inference_mode()
    def _start(self, slot: int) -> _Slot:
        """Begin a new sequence in a slot."""
        kind = self.pick.choice(list(OPENERS))
        forced = deque(self.pick.choice(self.openers[kind]))
        if kind == RAW:
            self.positions[slot] = 0
            return _Slot(kind, self.pick.random() < 0.5, forced, list(forced), message=len(forced))
        kept = len(self.opening) - 1  # the opening's last token is fed again, for its logits
        for layer, (keys, values) in zip(self.layers, self.prefix, strict=True):
            assert layer.keys is not None and layer.values is not None
            layer.keys[slot, :, :kept] = keys[0, :, :kept]
            layer.values[slot, :, :kept] = values[0, :, :kept]
        self.positions[slot] = kept
        return _Slot(kind, self.pick.random() < 0.5, deque([self.opening[-1], *forced]), list(forced))

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Row]:
        attention, self.model.config._attn_implementation = self.model.config._attn_implementation, "slots"
        try:
            feed = [slot.forced.popleft() for slot in self.slots]
            while True:
                chosen = self._choose(self._forward(feed))
                for i, slot in enumerate(self.slots):
                    if slot.forced:
                        feed[i] = slot.forced.popleft()
                        continue
                    slot.ids.append(chosen[i])
                    feed[i] = chosen[i]
                    if slot.message is None:
                        if chosen[i] == self.end or len(slot.ids) >= MESSAGE:
                            slot.ids += self.turn[1:] if chosen[i] == self.end else self.turn
                            slot.forced = deque(slot.ids[-len(self.turn) + (chosen[i] == self.end) :])
                            slot.message = len(slot.ids)
                    elif chosen[i] == self.end or len(slot.ids) - slot.message >= ANSWER:
                        end = int(self.positions[i])
                        states = self.states[i, end - len(slot.ids) + 1 : end].clone()
                        yield Row(slot.kind, slot.message, slot.ids, slot.greedy, states)
                        self.slots[i] = self._start(i)
                        feed[i] = self.slots[i].forced.popleft()
        finally:
            self.model.config._attn_implementation = attention

    def _forward(self, feed: list[int]) -> torch.Tensor:
        """Feed one id a slot; logits [B, V]."""
        limit = int(self.positions.max()) + 1
        for layer in self.layers:
            layer.limit = limit
        mask = torch.arange(limit, device=self.positions.device)[None] <= self.positions[:, None]
        out = self.model(
            torch.tensor(feed, device=self.positions.device)[:, None],
            cache=self.cache,
            use_cache=True,
            position_ids=self.positions[:, None],
            attention_mask=mask[:, None, None],
            output_hidden_states=True,
        )
        self.states[torch.arange(len(feed)), self.positions] = out.hidden_states[-1][:, 0].half()
        self.positions += 1
        return out.logits[:, 0]

    def _choose(self, logits: torch.Tensor) -> list[int]:
        """The next id of every slot: argmax in a greedy answer, else drawn from the TOP_K most probable."""
        top = logits.topk(TOP_K, dim=-1)
        heat = torch.tensor([TEMPERATURE if slot.answering else 1.0 for slot in self.slots], device=logits.device)
        probs = (top.values.float() / heat[:, None]).softmax(-1)
        drawn = top.indices.gather(-1, torch.multinomial(probs, 1, generator=self.generator))[:, 0]
        greedy = torch.tensor([slot.answering and slot.greedy for slot in self.slots], device=logits.device)
        chosen: list[int] = torch.where(greedy, top.indices[:, 0], drawn).tolist()
        return chosen
