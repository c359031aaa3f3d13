"""Packed linear layers compute what they replace, and only replace what they can."""

import pytest
import torch
from tiny import model
from torch import nn

from specdemo.measure.memory import weight_bytes
from specdemo.models.kernels import PackedLinear, Part, pack

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 17, 300])
@torch.inference_mode()
def test_a_packed_layer_computes_the_same(rows, bias):
    torch.manual_seed(rows)
    linear = nn.Linear(37, 53, bias=bias)
    x = torch.randn(2, rows, 37)
    assert torch.allclose(PackedLinear([linear])(x), linear(x), atol=1e-5)


def test_only_float32_layers_are_packed_and_a_tied_head_keeps_the_embedding_whole():
    model = nn.ModuleDict({"embedding": nn.Embedding(53, 37), "head": nn.Linear(37, 53, bias=False)})
    model["head"].weight = model["embedding"].weight
    model["bf16"] = nn.Linear(8, 8, dtype=torch.bfloat16)
    before = model["embedding"].weight.clone()
    pack(model)
    assert type(model["head"]) is PackedLinear and type(model["bf16"]) is nn.Linear
    assert torch.equal(model["embedding"].weight, before)


def test_packed_weights_are_counted():
    model = nn.Sequential(nn.Linear(37, 53))
    before = weight_bytes(model)
    pack(model)
    assert weight_bytes(model) == before == (37 * 53 + 53) * 4


@torch.inference_mode()
def test_layers_that_read_one_input_are_computed_together_and_give_the_same():
    torch.manual_seed(0)
    plain, packed = (model("llama") for _ in range(2))
    before = weight_bytes(plain)
    pack(packed)
    ids = torch.arange(20)[None]
    for _ in range(2):
        assert torch.allclose(packed(ids).logits, plain(ids).logits, atol=1e-5)
    assert weight_bytes(packed) == before
    attention = packed.model.layers[0].self_attn
    assert type(attention.q_proj) is Part and attention.q_proj.computed is None
    x, y = torch.randn(2, 1, 3, 16)
    asked = [attention.q_proj(x), attention.q_proj(y), attention.k_proj(x)]  # out of turn: each input is its own
    source = plain.model.layers[0].self_attn
    for got, wanted in zip(asked, [source.q_proj(x), source.q_proj(y), source.k_proj(x)], strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)
