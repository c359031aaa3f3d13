"""Both loops, on tiny random models of every architecture: greedy is identical, the books balance, caches are true."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONFIGS, Table, model

from specdemo.engine import cache as cache_module
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.draft_model import CHAIN, STAGED, TREE, ModelDraft
from specdemo.engine.drafters import Draft, NgramDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Finish, Origin, Outcome, Sampling, Task

CPU = torch.device("cpu")
GREEDY = Sampling()
PROMPT = (3, 4, 5, 3, 4, 5, 3, 4, 6, 7, 3, 4)


class Wrong:
    """Drafts what the target will not say: its least likely ids."""

    cache_bytes = 0

    def __init__(self, target):
        self.target = CachedModel(target)

    def begin(self, prompt):
        pass

    def propose(self, tokens, budget):
        self.target.keep(0)
        return Draft.chain([int(self.target.forward(tokens)[-1].argmin())] * budget, Origin.DRAFT)


def rng():
    return Randomness(7, CPU)


def drafter(kind, target, architecture, sampling=GREEDY):
    if kind == "ngram":
        return NgramDraft(NgramModel(NgramTable()))
    if kind == "wrong":
        return Wrong(target)
    draft = target if kind.startswith("itself") else model(architecture, seed=1)
    growth = {"tree": TREE, "staged": STAGED, "itself staged": STAGED}.get(kind, CHAIN)
    ngram = NgramModel(NgramTable()) if growth is STAGED else None
    return ModelDraft(CachedModel(draft), 32, 32, sampling, rng(), growth, ngram)


def answer(steps):
    return [token.id for step in steps for token in step.tokens]


def run_both(architecture, kind, length, task):
    target = model(architecture)
    ours = list(plain(CachedModel(target), task, rng()))
    theirs = list(speculative(CachedModel(target), drafter(kind, target, architecture), task, length, rng()))
    return ours, theirs


def check_books(steps, task):
    tokens = [token for step in steps for token in step.tokens]
    nodes = [node for step in steps for node in step.nodes]
    accepted = [node.id for node in nodes if node.outcome is Outcome.ACCEPTED]
    assert [token.id for token in tokens if token.origin is not Origin.TARGET] == accepted
    assert all(node.p is None for node in nodes if node.outcome is Outcome.UNTESTED)
    assert all(node.p is not None for node in nodes if node.outcome is not Outcome.UNTESTED)
    assert len(tokens) <= task.max_new_tokens
    assert [step.finish for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[-1].finish is (Finish.EOS if tokens[-1].id in task.eos else Finish.LENGTH)
    assert all(token.id not in task.eos for token in tokens[:-1])
    if steps[-1].finish is Finish.LENGTH:
        assert len(tokens) == task.max_new_tokens


@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["ngram", "chain", "tree", "staged", "itself staged", "wrong", "itself"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_greedy_speculative_equals_plain(architecture, kind, length):
    task = Task(PROMPT, 30)
    ours, theirs = run_both(architecture, kind, length, task)
    assert answer(theirs) == answer(ours)
    check_books(ours, task)
    check_books(theirs, task)


def test_a_draft_that_is_the_target_is_always_accepted_and_a_wrong_one_never():
    _, right = run_both("llama", "itself", 4, Task(PROMPT, 21))
    assert len(right) == 5  # one token after the prompt, then four steps of 4 + 1
    assert all(node.outcome is Outcome.ACCEPTED for step in right for node in step.nodes)
    _, wrong = run_both("llama", "wrong", 4, Task(PROMPT, 21))
    assert len(wrong) == 21
    assert not any(node.outcome is Outcome.ACCEPTED for step in wrong for node in step.nodes)


@pytest.mark.parametrize("kind", ["ngram", "chain", "tree", "itself staged", "itself"])
@pytest.mark.parametrize("tokens", [0, 1, 2, 4, 5, 6])
def test_the_limit_is_met_exactly(kind, tokens):
    ours, theirs = run_both("llama", kind, 4, Task(PROMPT, tokens))
    assert len(answer(ours)) == len(answer(theirs)) == tokens
    assert answer(ours) == answer(theirs)


@given(
    eos=st.sets(st.integers(0, 31), max_size=6),
    length=st.integers(1, 6),
    kind=st.sampled_from(["ngram", "itself", "itself staged"]),
)
@settings(max_examples=25, deadline=None)
def test_the_first_of_several_end_ids_ends_both_paths_wherever_it_falls(eos, length, kind):
    task = Task(PROMPT, 24, frozenset(eos))
    ours, theirs = run_both("llama", kind, length, task)
    assert answer(theirs) == answer(ours)
    check_books(ours, task)
    check_books(theirs, task)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(1.0), Sampling(0.8, top_k=5, top_p=0.9), Sampling(0.8, repetition_penalty=1.3)]
)
@pytest.mark.parametrize("kind", ["ngram", "chain", "tree", "staged", "itself staged"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2"])
def test_after_every_step_the_cache_holds_all_tokens_but_the_last_and_is_true(architecture, kind, sampling):
    target = model(architecture)
    cached = CachedModel(target)
    task = Task(PROMPT, 20, sampling=sampling)
    ids = list(PROMPT)
    helper = drafter(kind, target, architecture, sampling)
    for step in speculative(cached, helper, task, 3, rng()):
        ids += [token.id for token in step.tokens]
        assert len(cached) == len(ids) - 1
        with torch.inference_mode():
            resumed = cached.forward(ids[-1:])[0]
            cached.keep(len(ids) - 1)
            fresh = target(torch.tensor([ids])).logits[0, -1]
        torch.testing.assert_close(resumed, fresh, atol=1e-4, rtol=1e-4)
    assert len(ids) == len(PROMPT) + 20


def test_a_long_prompt_is_read_in_chunks_that_commit_nothing(monkeypatch):
    monkeypatch.setattr(cache_module, "PREFILL_CHUNK", 5)
    task = Task(PROMPT, 6)
    ours, theirs = run_both("mistral", "ngram", 3, task)
    assert [len(step.tokens) for step in ours][:4] == [0, 0, 1, 1]
    monkeypatch.undo()
    whole, _ = run_both("mistral", "ngram", 3, task)
    assert answer(ours) == answer(theirs) == answer(whole)


def test_past_the_drafts_context_it_goes_on_plainly_and_says_so():
    target, draft = model(), model(seed=1, max_position_embeddings=16)
    helper = ModelDraft(CachedModel(draft), 32, 32, Sampling(), rng())
    task = Task(PROMPT, 20)
    steps = list(speculative(CachedModel(target), helper, task, 3, rng()))
    assert answer(steps) == answer(plain(CachedModel(target), task, rng()))
    assert any(step.nodes for step in steps)
    late = [step for step in steps if step.note]
    assert len(late) > 10 and all("draft's context of 16" in step.note and not step.nodes for step in late)


def test_a_prompt_longer_than_the_drafts_context_is_answered_plainly():
    draft = ModelDraft(CachedModel(model(seed=1, max_position_embeddings=8)), 32, 32, Sampling(), rng())
    steps = list(speculative(CachedModel(model()), draft, Task(PROMPT, 5), 3, rng()))
    assert len(answer(steps)) == 5 and all("draft's context" in step.note for step in steps[1:-1])


def test_a_padded_draft_never_drafts_a_padding_id():
    target, draft = model(), model(seed=1, vocab_size=48)
    with torch.no_grad():
        draft.lm_head.weight[40] = draft.lm_head.weight.abs().sum(0)  # a padding row that would often win
    for sampling in (Sampling(), Sampling(1.0)):
        helper = ModelDraft(CachedModel(draft), 32, 30, sampling, rng())
        with torch.inference_mode():
            helper.begin(PROMPT)
            drafted = helper.propose(PROMPT, 8)
        assert all(token < 30 for token in drafted.tokens)
        assert drafted.probs is None or (drafted.probs.shape == (8, 32) and not drafted.probs[:, 30:].any())
    task = Task(PROMPT, 12)
    helper = ModelDraft(CachedModel(draft), 32, 30, Sampling(), rng())
    assert answer(speculative(CachedModel(target), helper, task, 4, rng())) == answer(
        plain(CachedModel(target), task, rng())
    )


def test_token_id_zero_and_a_prompt_of_one_token():
    for prompt in ((0,), (5,)):
        ours, theirs = run_both("llama", "ngram", 3, Task(prompt, 10))
        assert answer(ours) == answer(theirs) and len(answer(ours)) == 10


def test_a_draft_with_a_vocabulary_of_one():
    target = model()
    helper = ModelDraft(CachedModel(model(seed=1, vocab_size=1)), 32, 1, Sampling(1.0), rng())
    task = Task((0, 0, 0), 8, sampling=Sampling(1.0))
    steps = list(speculative(CachedModel(target), helper, task, 2, rng()))
    assert len(answer(steps)) == 8
    assert {node.id for step in steps for node in step.nodes} == {0}


def test_the_same_seed_gives_the_same_answer():
    target, task = model(), Task(PROMPT, 15, sampling=Sampling(1.0))
    answers = [answer(plain(CachedModel(target), task, Randomness(seed, CPU))) for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_scores_and_margins_are_those_of_a_fresh_forward_pass():
    target = model()
    steps = list(speculative(CachedModel(target), NgramDraft(NgramModel(NgramTable())), Task(PROMPT, 12), 4, rng()))
    tokens = [token for step in steps for token in step.tokens]
    with torch.inference_mode():
        logits = target(torch.tensor([[*PROMPT, *(token.id for token in tokens)]])).logits[0]
    for token, row in zip(tokens, logits[len(PROMPT) - 1 :], strict=False):
        best = row.topk(2).values
        assert token.logprob == pytest.approx(float(row.log_softmax(-1)[token.id]), abs=1e-4)
        assert token.margin == pytest.approx(float(best[0] - best[1]), abs=1e-3)


def test_a_tie_goes_to_the_lowest_id_in_both_paths():
    class Tied(Table):
        def logits(self, prefix):
            return torch.tensor([0.0, 2.0, 2.0, 1.0], dtype=torch.float64)

    task = Task((0, 1), 6)
    assert answer(plain(Tied(4, 0), task, rng())) == [1] * 6
    assert answer(speculative(Tied(4, 0), NgramDraft(NgramModel(NgramTable())), task, 3, rng())) == [1] * 6


def test_closing_a_path_in_mid_run_leaves_inference_mode():
    path = plain(CachedModel(model()), Task(PROMPT, 10), rng())
    next(path)
    assert not torch.is_inference_mode_enabled()
    path.close()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("kind", ["chain", "tree", "staged", "itself staged"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)], ids=["greedy", "sampling"])
def test_the_drafts_own_cache_is_true_after_every_proposal(kind, sampling):
    target = model()
    helper = drafter(kind, target, "llama", sampling)
    seen = []
    honest = helper._read

    def watched(paths, tokens):
        honest(paths, tokens)
        for path, logits in helper._logits.items():
            fresh = helper.model.model(torch.tensor([[*tokens, *path]])).logits[0, -1]
            torch.testing.assert_close(logits, fresh, atol=1e-4, rtol=1e-4)
            seen.append(len(path))

    helper._read = watched
    list(speculative(CachedModel(target), helper, Task(PROMPT, 50, sampling=sampling), 6, rng()))
    assert max(seen) >= 2


def test_staged_drafting_takes_fewer_passes_of_the_draft_and_says_who_wrote_what():
    target, passes = model(), {}
    for kind in ("itself", "itself staged"):
        helper = drafter(kind, target, "llama")
        honest, calls = helper.model.forward, []
        helper.model.forward = lambda *a, honest=honest, calls=calls, **k: calls.append(1) or honest(*a, **k)
        steps = list(speculative(CachedModel(target), helper, Task(PROMPT, 60), 6, rng()))
        passes[kind] = len(calls) / sum(bool(step.nodes) for step in steps)
    assert passes["itself staged"] < passes["itself"]
    assert {token.origin for step in steps for token in step.tokens} == {Origin.TARGET, Origin.DRAFT, Origin.NGRAM}


def test_a_penalty_keeps_greedy_identical_and_is_that_of_transformers():
    target, sampling = model(), Sampling(repetition_penalty=1.4)
    task = Task(PROMPT, 20, sampling=sampling)
    expected = target.generate(
        torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False, repetition_penalty=1.4, eos_token_id=None
    )[0, len(PROMPT) :].tolist()
    assert answer(plain(CachedModel(target), task, rng())) == expected
    assert expected != answer(plain(CachedModel(target), Task(PROMPT, 20), rng()))
    for kind in ("ngram", "chain", "tree", "itself staged"):
        helper = drafter(kind, target, "llama", sampling)
        assert answer(speculative(CachedModel(target), helper, task, 4, rng())) == expected


@given(st.lists(st.lists(st.integers(0, 31), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_earliest_stop_ends_both_paths_inside_a_block_too(stops, length):
    def stop(ids, new):
        ends = [
            end
            for end in range(len(ids) - new + 1, len(ids) + 1)
            for wanted in stops
            if list(ids[max(0, end - len(wanted)) : end]) == wanted
        ]
        return min(ends, default=None)

    task = Task(PROMPT, 24, stop=stop)
    ours, theirs = run_both("llama", "itself staged", length, task)
    assert answer(theirs) == answer(ours)
    unstopped = answer(plain(CachedModel(model()), Task(PROMPT, 24), rng()))
    end = next((i for i in range(1, 25) if stop(unstopped[:i], i) is not None), None)
    assert answer(ours) == unstopped[:end]
    assert ours[-1].finish is theirs[-1].finish is (Finish.STOP if end else Finish.LENGTH)
