"""A causal language model together with its key-value cache: the only place that touches a cache.

Every layer keeps all positions, also those of models with a sliding window: the model's own mask hides what the
window hides, and a rollback after a rejection can never reach a key that was already thrown away.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

BLOCK = 64  # positions by which a buffer grows; appending must not copy the whole cache at every token
PREFILL_CHUNK = 512  # prompt tokens a forward pass, so that a Stop is heard inside a long prompt


class GrowingLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers [B, heads, capacity, head_dim] that are filled to `length`."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty(*key_states.shape[:2], 0, key_states.shape[-1])
        self.values = value_states.new_empty(*value_states.shape[:2], 0, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, heads, N, head_dim] and return views of all filled positions [B, heads, length, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            capacity = -(-end // BLOCK) * BLOCK
            self.keys = self._grown(self.keys, capacity)
            self.values = self._grown(self.values, capacity)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grown(self, buffer: torch.Tensor, capacity: int) -> torch.Tensor:
        grown = buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[-1])
        grown[:, :, : self.length] = buffer[:, :, : self.length]
        return grown

    def compact(self, length: int, rows: torch.Tensor) -> None:
        """Keep the first `length` positions and move the positions `length + rows` right behind them."""
        end = length + len(rows)
        for buffer in (self.keys, self.values):
            assert buffer is not None
            buffer[:, :, length:end] = buffer[:, :, length + rows]
        self.length = end

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1


class CachedModel:
    """A model and the cache of one path. Several paths may share one model; each has its own cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config: Any = model.config.get_text_config()
        self.layers = [GrowingLayer() for _ in range(self.config.num_hidden_layers)]
        self.cache = Cache(layers=[*self.layers])
        self.context: int = self.config.max_position_embeddings  # tokens
        self.window: int | None = getattr(self.config, "sliding_window", None)  # tokens
        self.device: torch.device = model.device

    def __len__(self) -> int:
        """Filled positions."""
        return self.layers[0].length

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(
            layer.keys.nbytes + layer.values.nbytes
            for layer in self.layers
            if layer.keys is not None and layer.values is not None
        )

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, keep_logits: int | None = None
    ) -> torch.Tensor:
        """Append `tokens` (N ids) and return the logits [keep_logits or N, V] of the last positions.

        parents: a token tree. parents[i] is the index in `tokens` of the token before tokens[i], -1 the last cached
        position; None is a chain. Each token sees the cache and its own ancestors, as if no other branch were there.
        Raises ValueError when the context would overflow; the cache is then unchanged.
        """
        if len(self) + len(tokens) > self.context:
            raise ValueError(
                f"{len(self) + len(tokens)} tokens do not fit the model's context of {self.context}; "
                "shorten the prompt or ask for fewer tokens"
            )
        ids = torch.tensor([list(tokens)], device=self.device)
        tree = self._tree(parents) if parents is not None else {}
        out = self.model(ids, cache=self.cache, use_cache=True, logits_to_keep=keep_logits or len(tokens), **tree)
        return out.logits[0]

    def _tree(self, parents: Sequence[int]) -> dict[str, Any]:
        """Positions [1, N] and attention mask [1, 1, N, T + N] of a tree behind T cached positions.

        A mask of one's own replaces a sliding window, so the window is written into it.
        Source: Miao et al. 2024 (SpecInfer), section 4.2, tree attention.
        """
        past, depth = len(self), [0] * len(parents)
        ancestors = torch.eye(len(parents), dtype=torch.bool)
        for i, parent in enumerate(parents):
            if parent >= 0:
                depth[i] = depth[parent] + 1
                ancestors[i] |= ancestors[parent]
        positions = past + torch.tensor(depth)
        full = torch.cat([torch.ones(len(parents), past, dtype=torch.bool), ancestors], dim=1)
        distance = positions[:, None] - torch.cat([torch.arange(past), positions])
        windowed = full & (distance < self.window) if self.window else full
        masks = {"full_attention": self._mask(full), "sliding_attention": self._mask(windowed)}
        kinds = set(getattr(self.config, "layer_types", None) or ())
        return {
            "position_ids": positions[None].to(self.device),
            # A model with several kinds of layers takes a mask for each; the others are windowed as a whole or not.
            "attention_mask": {kind: masks[kind] for kind in kinds} if kinds else masks["sliding_attention"],
        }

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        """[N, T + N] booleans in the form that the attention kernel takes."""
        visible = visible[None, None].to(self.device)
        if self.config._attn_implementation != "eager":
            return visible
        # Eager kernels add the mask to the scores; a boolean one would be added as 0 and 1.
        return torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device).masked_fill(
            ~visible, torch.finfo(self.model.dtype).min
        )

    def prefill(self, tokens: Sequence[int]) -> Iterator[torch.Tensor]:
        """Append a prompt in chunks; yields the logits [1, V] of each chunk's last position."""
        for start in range(0, len(tokens), PREFILL_CHUNK):
            yield self.forward(tokens[start : start + PREFILL_CHUNK], keep_logits=1)

    def keep(self, length: int, path: Sequence[int] = ()) -> None:
        """Keep the first `length` positions and behind them the positions length + path[i], in ascending order.

        Everything else is forgotten. Keys keep the rotation of the positions they were computed at, which are those of
        the path. Raises ValueError if there are fewer positions.
        """
        if not 0 <= length + (path[-1] + 1 if path else 0) <= len(self):
            raise ValueError(f"cannot keep {length} and {list(path)} behind them of {len(self)} cached positions")
        straight = list(path) == list(range(len(path)))
        rows = torch.tensor(path, device=self.device, dtype=torch.long)
        for layer in self.layers:
            if straight:
                layer.length = length + len(path)
            else:
                layer.compact(length, rows)
