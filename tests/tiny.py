"""Tiny models for the tests: one of each architecture of interest, and one that is only a table."""

import hashlib

import torch
import transformers as t

SMALL = dict(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=0,
    initializer_range=0.4,
)  # fmt: skip
WINDOW = 8

CONFIGS = {
    "llama": lambda: t.LlamaConfig(**SMALL),
    "mistral": lambda: t.MistralConfig(**SMALL, sliding_window=WINDOW),
    "mixtral": lambda: t.MixtralConfig(**SMALL, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=1),
    "gemma": lambda: t.GemmaConfig(**SMALL, head_dim=8),
    "gemma2": lambda: t.Gemma2Config(
        **SMALL, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8, attn_implementation="eager"
    ),
    "gpt_neox": lambda: t.GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}),
    "gpt2": lambda: t.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=256, bos_token_id=0, eos_token_id=1,
        initializer_range=0.4,
    ),
}  # fmt: skip


def model(architecture: str = "llama", seed: int = 0, **changes: object) -> t.PreTrainedModel:
    """A random model; its weights are wide enough that its answers are not one repeated token."""
    torch.manual_seed(seed)
    config = CONFIGS[architecture]()
    config.update(changes)
    return t.AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation).eval()


class Table:
    """Stands in for CachedModel: float64 logits [V] that are a fixed function of the whole prefix."""

    cache_bytes = 0
    context = 64
    device = torch.device("cpu")

    def __init__(self, vocabulary: int, seed: int) -> None:
        self.vocabulary, self.seed = vocabulary, seed
        self.ids: list[int] = []
        self.branches: list[tuple[int, ...]] = []  # rows since the last keep(), each the ids from there to it

    def __len__(self) -> int:
        return len(self.ids)

    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        digest = hashlib.sha256(repr((self.seed, prefix)).encode()).digest()
        return torch.tensor([byte / 160 for byte in digest[: self.vocabulary]], dtype=torch.float64)

    def forward(self, tokens, parents=None, keep_logits=None):
        assert parents is not None or not self.branches
        trunk = tuple(self.ids[: len(self.ids) - len(self.branches)])
        rows = []
        for i, token in enumerate(tokens):
            before = self.branches if parents is not None else rows
            parent = i - 1 if parents is None else parents[i]
            rows.append((*(before[parent] if parent >= 0 else ()), token))
            if parents is not None:
                self.branches.append(rows[-1])
        self.ids += tokens
        return torch.stack([self.logits(trunk + row) for row in rows])[-(keep_logits or len(rows)) :]

    def prefill(self, tokens):
        if tokens:
            yield self.forward(tokens, keep_logits=1)

    def keep(self, length: int, path=()) -> None:
        kept = [*self.ids[:length], *(self.ids[length + row] for row in path)]
        assert len(kept) == length + len(path)
        self.ids, self.branches = kept, []
