"""The cache of one path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONFIGS, model

from specdemo.engine import cache as cache_module
from specdemo.engine.cache import Buffer, CachedModel

MODELS = {name: model(name) for name in ("llama", "mistral", "gemma2")}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_tokens_fed_one_by_one_in_blocks_and_at_once_give_the_same_logits(architecture):
    target = model(architecture)
    ids = [(7 * i + 3) % 32 for i in range(30)]
    with torch.inference_mode():
        fresh = target(torch.tensor([ids])).logits[0]
        single, block = CachedModel(target), CachedModel(target)
        by_one = torch.cat([single.forward([token]) for token in ids])
        by_five = torch.cat([block.forward(ids[i : i + 5]) for i in range(0, 30, 5)])
    torch.testing.assert_close(by_one, fresh, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(by_five, fresh, atol=1e-4, rtol=1e-4)


@given(
    name=st.sampled_from(sorted(MODELS)),
    moves=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_appends_and_rollbacks_leaves_a_true_cache(name, moves):
    target = MODELS[name]
    cached = CachedModel(target)
    ids: list[int] = []
    with torch.inference_mode():
        for count, kept in moves:
            new = [(len(ids) * 5 + i * 11 + 2) % 32 for i in range(count)]
            logits = cached.forward(new)
            ids += new
            fresh = target(torch.tensor([ids])).logits[0, -count:]
            torch.testing.assert_close(logits, fresh, atol=1e-4, rtol=1e-4)
            del ids[int(kept * len(ids)) :]
            cached.keep(len(ids))
            assert len(cached) == len(ids)


TREE = (-1, 0, 0, 1, 1, 2, 5, 3)  # as forward() takes it: the last committed token, then seven nodes


def branch(parents, node):
    """Nodes from the root down to `node`."""
    return [] if node < 0 else [*branch(parents, parents[node]), node]


@pytest.mark.parametrize("prompt", [1, 5, 21])  # 21: longer than the windows of 8
@pytest.mark.parametrize("architecture", CONFIGS)
def test_each_node_of_a_tree_equals_a_fresh_forward_from_the_root_and_the_kept_path_goes_on_truly(architecture, prompt):
    target = model(architecture)
    past = [(7 * i + 3) % 32 for i in range(prompt)]
    tokens = [5, 9, 17, 4, 30, 22, 8, 11]
    with torch.inference_mode():
        for leaf in range(len(TREE)):
            cached = CachedModel(target)
            cached.forward(past)
            logits = cached.forward(tokens, TREE)
            for node in range(len(TREE)):
                fresh = target(torch.tensor([past + [tokens[i] for i in branch(TREE, node)]])).logits[0, -1]
                torch.testing.assert_close(logits[node], fresh, atol=1e-4, rtol=1e-4)
            path = branch(TREE, leaf)
            cached.keep(prompt, path)
            assert len(cached) == prompt + len(path)
            kept = past + [tokens[i] for i in path]
            fresh = target(torch.tensor([[*kept, 13]])).logits[0, -1:]
            torch.testing.assert_close(cached.forward([13]), fresh, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_tree_of_width_one_is_a_chain(architecture):
    target = model(architecture)
    chain, tree = CachedModel(target), CachedModel(target)
    with torch.inference_mode():
        for cached in (chain, tree):
            cached.forward(list(range(12)))
        torch.testing.assert_close(tree.forward([4, 5, 6], [-1, 0, 1]), chain.forward([4, 5, 6]), atol=1e-5, rtol=1e-5)


def test_a_buffer_grows_by_blocks_and_its_bytes_are_counted(monkeypatch):
    monkeypatch.setattr(cache_module, "BLOCK", 4)
    cached = CachedModel(model())
    sizes = []
    with torch.inference_mode():
        for _ in range(9):
            cached.forward([1])
            sizes.append(cached.cache_bytes)
    per_position = 2 * 2 * 1 * 8 * 4  # keys and values, layers, heads, head_dim, bytes of a float32
    assert sizes == [per_position * capacity for capacity in (4, 4, 4, 4, 8, 8, 8, 8, 12)]


class Elsewhere(list):
    """Stands in for indices on another GPU: of no use before they are brought here."""

    def to(self, device):
        assert device == torch.device("cpu")
        return torch.tensor(self)


def test_the_rows_to_keep_are_told_on_the_device_where_the_rows_lie():
    """A target spread over GPUs has its later layers elsewhere than its first, whose device the path comes from."""
    buffer = Buffer()
    buffer.append(torch.arange(6.0).reshape(1, 6, 1))
    buffer.keep(2, Elsewhere([1, 3]))
    assert buffer.length == 4 and buffer.data[0, :4, 0].tolist() == [0, 1, 3, 5]


def test_the_context_is_not_overrun():
    cached = CachedModel(model(max_position_embeddings=4))
    with torch.inference_mode():
        cached.forward([1, 2, 3])
        with pytest.raises(ValueError, match="context of 4"):
            cached.forward([1, 2])
        assert len(cached) == 3


def test_more_than_there_is_cannot_be_kept():
    with pytest.raises(ValueError, match="cannot keep 1 "):
        CachedModel(model()).keep(1)
