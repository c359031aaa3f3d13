"""Quantized weights: which layers, how many bytes, and that the rest of the program takes them."""

from threading import Event

import pytest
import torch
from tiny import CONFIGS, model
from torch import nn

from specdemo.engine.cache import CachedModel
from specdemo.engine.types import Origin
from specdemo.measure.memory import weight_bytes
from specdemo.models import kernels, size
from specdemo.models.load import load, unpacked
from specdemo.models.pairs import PAIRS
from specdemo.models.quantize import Quantization
from specdemo.request import RaceRequest
from specdemo.run import Run

KINDS = [Quantization("nf4"), Quantization("nf4", double=True), Quantization("int8")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folders = {}
    for architecture in CONFIGS:
        folders[architecture] = tmp_path_factory.mktemp(architecture)
        model(architecture).save_pretrained(folders[architecture])
    return folders


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("quantization", [None, *KINDS], ids=str)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_bytes_foretold_are_the_bytes_that_loading_takes(architecture, quantization, dtype, saved):
    """Holds off a preflight that forgets scales, ties, or a layer that is left as it is."""
    loaded = unpacked(str(saved[architecture]), dtype, quantization)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    foretold = size.weight_bytes(size.skeleton(CONFIGS[architecture](), kind, quantization), kind)
    assert weight_bytes(loaded) == foretold
    before = weight_bytes(loaded)
    CachedModel(loaded).forward([1, 2, 3])  # bitsandbytes moves int8's scales at the first pass
    assert weight_bytes(loaded) == before


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox"])
@torch.inference_mode()
def test_quantized_weights_compute_about_the_same(architecture, saved):
    """Other weights than the model's own, such as transposed ones, would be off by 1.4."""
    exact, int8, nf4 = (
        unpacked(str(saved[architecture]), "fp32", quantization)(torch.arange(20)[None]).logits
        for quantization in (None, Quantization("int8"), Quantization("nf4"))
    )
    error = {name: float((near - exact).norm() / exact.norm()) for name, near in (("int8", int8), ("nf4", nf4))}
    assert 0 < error["int8"] < error["nf4"] < 0.8


def by_hand(rows, columns, quantization):
    weights = rows * columns
    if quantization.kind == "int8":
        return weights + rows * 4
    blocks = weights // 64
    if quantization.double:  # scales in 8 bits, in blocks of 256 with a float32 each, a table of 256, and an offset
        return weights // 2 + 16 * 4 + blocks + 4 * -(-blocks // 256) + 256 * 4 + 4
    return weights // 2 + 16 * 4 + blocks * 4


@pytest.mark.parametrize("quantization", KINDS, ids=str)
def test_scales_and_tables_are_counted(quantization):
    import bitsandbytes as bnb

    if quantization.kind == "int8":
        layer = bnb.nn.Linear8bitLt(512, 768, bias=False, has_fp16_weights=False)
    else:
        layer = bnb.nn.Linear4bit(
            512, 768, bias=False, quant_type="nf4", compress_statistics=quantization.double, compute_dtype=torch.float32
        )
    layer = layer.to("cpu")
    assert weight_bytes(layer) == by_hand(768, 512, quantization) == size.quantized_bytes(layer)


def test_head_and_embedding_stay_and_packing_leaves_quantized_layers_alone(saved):
    import bitsandbytes as bnb

    loaded = unpacked(str(saved["llama"]), "fp32", Quantization("nf4"))
    assert type(loaded.lm_head) is nn.Linear and loaded.get_input_embeddings().weight.dtype is torch.float32
    before = loaded(torch.arange(9)[None]).logits
    kernels.pack(loaded)
    kinds = {type(x) for x in loaded.model.layers.modules() if isinstance(x, nn.Linear)}
    assert kinds == {bnb.nn.Linear4bit} and type(loaded.lm_head) is kernels.PackedLinear
    assert torch.allclose(loaded(torch.arange(9)[None]).logits, before, atol=1e-5)


def test_products_are_computed_in_the_pairs_dtype(saved):
    for dtype, compute in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        layer = unpacked(str(saved["llama"]), dtype, Quantization("nf4")).model.layers[0].self_attn.q_proj
        assert layer.compute_dtype is compute
        assert not layer.weight.quant_state.nested


@pytest.mark.parametrize(("kind", "double"), [("int4", False), ("int8", True), ("none", True)])
def test_a_quantization_that_does_not_exist_is_refused(kind, double):
    with pytest.raises(ValueError, match="quantization: "):
        Quantization(kind, double=double)


def test_the_draft_is_quantized_only_where_both_are_asked_for():
    assert Quantization("nf4").applies(target=True) and not Quantization("nf4").applies(target=False)
    assert Quantization("nf4", both=True).applies(target=False) and not Quantization().applies(target=True)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_the_embedded_target_answers_and_drafts_with_its_head_when_quantized(kind):
    loaded = load(PAIRS["embedded"], "fp32", Quantization(kind))
    prompt = "The capital of France is"
    request = RaceRequest(prompt=prompt, dtype="fp32", mode="tree", max_new_tokens=3, chat_template=False)
    run = Run(request, loaded, Event())
    for _ in run:
        pass
    result = run.result()
    assert "Paris" in result["plain"]["text"]
    assert Origin.DRAFT in {node.origin for _, step in run.trace.steps for node in step.nodes}
    # 106,168,320 weights of layers; float32 remain the norms, the embedding, and the packed head's copy of it.
    scales = {"nf4": 106_168_320 * (0.5 + 4 / 64), "int8": 106_168_320}[kind]
    rest = 4 * (134_515_008 - 106_168_320 + 49152 * 576)
    assert result["memory"]["target_weights_mb"] == pytest.approx((scales + rest) / 1e6, rel=0.01)
