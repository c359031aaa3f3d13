"""How many bytes a model and its caches take, known from its config alone: the model is built without weights."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import init_empty_weights
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.quantizers import AutoHfQuantizer

from specdemo.models.quantize import BLOCK, NESTED_BLOCK, Quantization

NF4_CODE, NESTED_CODE, OFFSET = 16 * 4, 256 * 4, 4  # bytes of the tables that a quantized layer keeps


def skeleton(config: PreTrainedConfig, dtype: torch.dtype, quantization: Quantization | None = None) -> PreTrainedModel:
    """The model of a config without memory for its weights, its layers replaced as loading would.

    quantization None: this model is not quantized. Raises ValueError for what is no causal language model.
    """
    with init_empty_weights(include_buffers=True):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    if quantization is not None:
        AutoHfQuantizer.from_config(quantization.config(dtype), pre_quantized=False).preprocess_model(
            model, device_map=None
        )
    return model


def weight_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Bytes that a skeleton's parameters and buffers will take in `dtype`; tied weights count once."""
    quantized = {id(layer.weight): layer for layer in model.modules() if isinstance(layer, (Linear4bit, Linear8bitLt))}
    total = sum(quantized_bytes(layer) for layer in quantized.values())
    for parameter in model.parameters():
        if id(parameter) not in quantized:
            total += parameter.numel() * dtype.itemsize
    return total + sum(buffer.nbytes for buffer in model.buffers())


def quantized_bytes(layer: Any) -> int:
    """Bytes of a quantized layer's weights [out, in] and of what is needed to read them."""
    weights = layer.in_features * layer.out_features
    if isinstance(layer, Linear8bitLt):
        return weights + 4 * layer.out_features
    blocks = -(-weights // BLOCK)
    scales = 4 * blocks
    if layer.weight.compress_statistics:
        scales = blocks + 4 * -(-blocks // NESTED_BLOCK) + NESTED_CODE + OFFSET
    return -(-weights // 2) + NF4_CODE + scales


def packed_copy_bytes(model: PreTrainedModel) -> int:
    """Bytes of the output head's own copy that `kernels.pack` makes where it shares the embedding's float32 weights."""
    head: Any = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    if head is None or head.weight is not embedding.weight or not torch.backends.mkldnn.is_available():
        return 0
    return 4 * head.weight.numel()


def expert_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Bytes of expert weights that lie in one block for all experts, no linear layers, and so are never quantized."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 3) * dtype.itemsize


def cached_numbers(config: PreTrainedConfig) -> int:
    """Numbers that a key-value cache keeps for one token: keys and values of every layer, windowed ones too."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * width


def counts(model: PreTrainedModel) -> tuple[int, int]:
    """Parameters of a quantized skeleton, tied ones once: all, and those that are quantized."""
    linear = sum(x.in_features * x.out_features for x in model.modules() if isinstance(x, (Linear4bit, Linear8bitLt)))
    return sum(x.numel() for x in model.parameters()), linear
