"""The shapes that the models of the pair table publish in their config.json, without weights."""

import transformers as t


def llama(width, layers, heads, kv, inner, vocabulary, context, tied=False, **more):
    return t.LlamaConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=context,
        tie_word_embeddings=tied, **more
    )  # fmt: skip


def gemma(kind, width, layers, heads, kv, inner, **more):
    return kind(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=inner, head_dim=256, vocab_size=256000, max_position_embeddings=8192, **more
    )  # fmt: skip


def mistral(kind, window, **more):
    return kind(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=32000, max_position_embeddings=32768, sliding_window=window, **more
    )  # fmt: skip


def pythia(width, layers, heads, inner, vocabulary):
    return t.GPTNeoXConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner,
        vocab_size=vocabulary, max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip


def qwen(kind, width, layers, heads, kv, inner, vocabulary, context, tied, **more):
    return kind(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=context,
        tie_word_embeddings=tied, **more
    )  # fmt: skip


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LLAMA32 = LLAMA3 | {"factor": 32.0}


def smollm2_135m(layers=30):
    return llama(576, layers, 9, 3, 1536, 49152, 8192, True)


# Each as a call: a config is built only where a test asks for it.
CONFIGS = {
    "embedded": smollm2_135m,
    "embedded-draft": lambda: smollm2_135m(4),
    "google/gemma-2-9b-it": lambda: gemma(t.Gemma2Config, 3584, 42, 16, 8, 14336, query_pre_attn_scalar=256),
    "google/gemma-2-2b-it": lambda: gemma(t.Gemma2Config, 2304, 26, 8, 4, 9216, query_pre_attn_scalar=256),
    "google/gemma-7b": lambda: gemma(t.GemmaConfig, 3072, 28, 16, 16, 24576),
    "google/gemma-2b": lambda: gemma(t.GemmaConfig, 2048, 18, 8, 1, 16384),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": lambda: mistral(
        t.MixtralConfig, None, num_local_experts=8, num_experts_per_tok=2
    ),
    "mistralai/Mistral-7B-Instruct-v0.1": lambda: mistral(t.MistralConfig, 4096),
    "mistralai/Mistral-7B-Instruct-v0.2": lambda: mistral(t.MistralConfig, None),
    "EleutherAI/pythia-12b": lambda: pythia(5120, 36, 40, 20480, 50688),
    "EleutherAI/pythia-70m": lambda: pythia(512, 6, 8, 2048, 50304),
    "meta-llama/Llama-2-13b-chat-hf": lambda: llama(5120, 40, 40, 40, 13824, 32000, 4096),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": lambda: llama(2048, 22, 32, 4, 5632, 32000, 2048),
    "openai-community/gpt2-large": lambda: t.GPT2Config(n_embd=1280, n_layer=36, n_head=20),
    "distilbert/distilgpt2": lambda: t.GPT2Config(n_embd=768, n_layer=6, n_head=12),
    "Qwen/Qwen2.5-7B-Instruct": lambda: qwen(t.Qwen2Config, 3584, 28, 28, 4, 18944, 152064, 32768, False),
    "Qwen/Qwen2.5-0.5B-Instruct": lambda: qwen(t.Qwen2Config, 896, 24, 14, 2, 4864, 151936, 32768, True),
    "Qwen/Qwen3-8B": lambda: qwen(t.Qwen3Config, 4096, 36, 32, 8, 12288, 151936, 40960, False, head_dim=128),
    "Qwen/Qwen3-0.6B": lambda: qwen(t.Qwen3Config, 1024, 28, 16, 8, 3072, 151936, 40960, True, head_dim=128),
    "meta-llama/Llama-3.1-8B-Instruct": lambda: llama(
        4096, 32, 32, 8, 14336, 128256, 131072, rope_parameters=dict(LLAMA3)
    ),
    "meta-llama/Llama-3.2-3B-Instruct": lambda: llama(
        3072, 28, 24, 8, 8192, 128256, 131072, True, head_dim=128, rope_parameters=dict(LLAMA32)
    ),
    "meta-llama/Llama-3.2-1B-Instruct": lambda: llama(
        2048, 16, 32, 8, 8192, 128256, 131072, True, head_dim=64, rope_parameters=dict(LLAMA32)
    ),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": lambda: llama(2048, 24, 32, 32, 8192, 49152, 8192, True),
    "HuggingFaceTB/SmolLM2-135M-Instruct": smollm2_135m,
}
