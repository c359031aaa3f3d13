"""A causal language model together with its key-value cache: the only place that touches a cache.

Every layer keeps all positions, also those of models with a sliding window: the model's own mask hides what the
window hides, and a rollback after a rejection can never reach a key that was already thrown away.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

BLOCK = 64  # positions by which a buffer grows; appending must not copy the whole cache at every token
PREFILL_CHUNK = 512  # prompt tokens a forward pass, so that a Stop is heard inside a long prompt


def context_of(config: Any) -> int:
    """Tokens that a model of this text config can attend to, as long as the rotation of a position stays the same.

    "longrope" (Phi-3 and 4) rotates all positions otherwise once a pass reaches beyond the original context: keys that
    were cached before would be wrong, and a draft that reaches beyond would change the rows before it.
    """
    most: int = config.max_position_embeddings
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return most
    return min(most, rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)


class Buffer:
    """Rows [..., T, width] along the second last dimension, `length` of them filled."""

    def __init__(self) -> None:
        self.data: torch.Tensor | None = None
        self.length = 0

    @property
    def nbytes(self) -> int:
        return self.data.nbytes if self.data is not None else 0

    def append(self, rows: torch.Tensor) -> torch.Tensor:
        """Add [..., N, width] and return a view of all filled rows."""
        end = self.length + rows.shape[-2]
        if self.data is None or end > self.data.shape[-2]:
            grown = rows.new_empty(*rows.shape[:-2], -(-end // BLOCK) * BLOCK, rows.shape[-1])
            if self.data is not None:
                grown[..., : self.length, :] = self.data[..., : self.length, :]
            self.data = grown
        self.data[..., self.length : end, :] = rows
        self.length = end
        return self.data[..., :end, :]

    def keep(self, length: int, path: torch.Tensor | None) -> None:
        """Keep the first `length` rows and move the rows `length + path` right behind them; None is no row more."""
        end = length if path is None else length + len(path)
        if path is not None:
            assert self.data is not None
            rows = length + path.to(self.data.device)  # a layer may lie on another GPU than the first
            self.data[..., length:end, :] = self.data[..., rows, :]
        self.length = end


class GrowingLayer(CacheLayerMixin):
    """Keys and values of one layer, [B, heads, T, head_dim]."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.buffers = Buffer(), Buffer()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, heads, N, head_dim] and return views of all filled positions [B, heads, T, head_dim]."""
        self.is_initialized = True
        self.keys, self.values = map(Buffer.append, self.buffers, (key_states, value_states))
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.buffers[0].length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class CachedModel:
    """A model and the cache of one path. Several paths may share one model; each has its own cache.

    model: a causal language model of transformers, or anything that is called like one.
    keep_states: also keep the last hidden state (after the final norm) of every position in `states` [T, D], for a
    drafter that reads them.
    """

    def __init__(self, model: Any, keep_states: bool = False) -> None:
        self.model = model
        self.config: Any = model.config.get_text_config()
        self.layers = [GrowingLayer() for _ in range(self.config.num_hidden_layers)]
        self.cache = Cache(layers=[*self.layers])
        self.context = context_of(self.config)
        self.window: int | None = getattr(self.config, "sliding_window", None)  # tokens
        self.device: torch.device = model.device
        self._states: Buffer | None = None
        if keep_states:
            self.keep_states()
        self._branches: list[int] = []  # parents of the tree's rows that were appended since the last keep()

    def __len__(self) -> int:
        """Filled positions."""
        return self.layers[0].get_seq_length()

    def keep_states(self) -> None:
        """From now on keep the last hidden state of every position too; nothing may be cached yet."""
        assert len(self) == 0, "states of what is cached already are lost"
        self._states = self._states or Buffer()

    @property
    def states(self) -> torch.Tensor:
        """Last hidden states [T, D] of the filled positions."""
        assert self._states is not None and self._states.data is not None, "ask for them with keep_states"
        return self._states.data[: self._states.length]

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for keys, values and states."""
        return sum(buffer.nbytes for buffer in self._buffers())

    def _buffers(self) -> Iterator[Buffer]:
        for layer in self.layers:
            yield from layer.buffers
        if self._states is not None:
            yield self._states

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        keep_logits: int | None = None,
        features: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Append `tokens` (N ids) and return the logits [keep_logits or N, V] of the last positions.

        parents: a token tree behind what keep() left. parents[i] is the row of the token before tokens[i], counted
        from there over all calls, -1 the last kept position; None is a chain, each token behind the one before it.
        Each token sees what was kept and its own ancestors, as if no other branch were there.
        features [N, D]: a second input, for a model that takes one.
        Raises ValueError when the context would overflow; the cache is then unchanged.
        """
        if len(self) + len(tokens) > self.context:
            raise ValueError(
                f"{len(self) + len(tokens)} tokens do not fit the model's context of {self.context}; "
                "shorten the prompt or ask for fewer tokens"
            )
        ids = torch.tensor([list(tokens)], device=self.device)
        options: dict[str, Any] = self._tree(parents) if parents is not None else {}
        assert parents is not None or not self._branches, "a chain behind a tree would see every branch"
        if features is not None:
            options["features"] = features[None]
        if self._states is not None:
            options["output_hidden_states"] = True
        out = self.model(ids, cache=self.cache, use_cache=True, logits_to_keep=keep_logits or len(tokens), **options)
        if self._states is not None:
            self._states.append(out.hidden_states[-1][0])
        return out.logits[0]

    def _tree(self, parents: Sequence[int]) -> dict[str, Any]:
        """Positions [1, N] and attention mask [1, 1, N, T + N] of N further rows of a tree behind T cached positions.

        A mask of one's own replaces a sliding window, so the window is written into it. A tree without a branch so far
        needs neither: a model's own mask for a chain is faster.
        Source: Miao et al. 2024 (SpecInfer), section 4.2, tree attention.
        """
        trunk = len(self) - len(self._branches)
        self._branches += parents
        if self._branches == list(range(-1, len(self._branches) - 1)):
            return {}
        rows, depth = len(self._branches), [0] * len(self._branches)
        ancestors = torch.eye(rows, dtype=torch.bool)
        for i, parent in enumerate(self._branches):
            if parent >= 0:
                depth[i] = depth[parent] + 1
                ancestors[i] |= ancestors[parent]
        positions = trunk + torch.tensor(depth)
        full = torch.cat([torch.ones(rows, trunk, dtype=torch.bool), ancestors], dim=1)
        distance = positions[:, None] - torch.cat([torch.arange(trunk), positions])
        windowed = full & (distance < self.window) if self.window else full
        new = slice(rows - len(parents), rows)
        masks = {"full_attention": self._mask(full[new]), "sliding_attention": self._mask(windowed[new])}
        kinds = set(getattr(self.config, "layer_types", None) or ())
        return {
            "position_ids": positions[None, new].to(self.device),
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
        rows = None if straight else torch.tensor(path, device=self.device)
        for buffer in self._buffers():
            buffer.keep(length + len(path) if straight else length, rows)
        self._branches.clear()
