"""A causal language model together with its key-value cache: the only place that touches a cache.

Every layer keeps all positions, also those of models with a sliding window: the model's own mask hides what the
window hides, and a rollback after a rejection can never reach a key that was already thrown away.
"""

from collections.abc import Iterator, Sequence

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
        config = model.config.get_text_config()
        self.layers = [GrowingLayer() for _ in range(config.num_hidden_layers)]
        self.cache = Cache(layers=[*self.layers])
        self.context: int = config.max_position_embeddings  # tokens
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

    def forward(self, tokens: Sequence[int], keep_logits: int | None = None) -> torch.Tensor:
        """Append `tokens` (N ids) and return the logits [keep_logits or N, V] of the last positions.

        Raises ValueError when the context would overflow; the cache is then unchanged.
        """
        if len(self) + len(tokens) > self.context:
            raise ValueError(
                f"{len(self) + len(tokens)} tokens do not fit the model's context of {self.context}; "
                "shorten the prompt or ask for fewer tokens"
            )
        ids = torch.tensor([list(tokens)], device=self.device)
        out = self.model(ids, cache=self.cache, use_cache=True, logits_to_keep=keep_logits or len(tokens))
        return out.logits[0]

    def prefill(self, tokens: Sequence[int]) -> Iterator[torch.Tensor]:
        """Append a prompt in chunks; yields the logits [1, V] of each chunk's last position."""
        for start in range(0, len(tokens), PREFILL_CHUNK):
            yield self.forward(tokens[start : start + PREFILL_CHUNK], keep_logits=1)

    def keep(self, length: int) -> None:
        """Forget every position from `length` on. Raises ValueError if there are fewer."""
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot keep {length} of {len(self)} cached positions")
        for layer in self.layers:
            layer.length = length
