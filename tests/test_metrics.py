"""Every figure against a count by hand, and the laws they obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.engine.types import Finish, Node, Origin, Outcome, Step, Token
from specdemo.measure import scoreboard
from specdemo.measure.metrics import DEFINITIONS, Lossless, Tally, lossless, speed_up


def token(id=1, origin=Origin.TARGET, logprob=-1.0, margin=2.0):
    return Token(id, origin, logprob, margin)


def node(outcome, id=1):
    return Node(id, -1, Origin.DRAFT, outcome, None, None)


def tally(*steps):
    made = Tally()
    for step in steps:
        made.add(step)
    return made


PREFILL = Step((), seconds=0.5, verify_s=0.5)
FIRST = Step((token(logprob=-2.0),), seconds=0.25, verify_s=0.125, draft_s=0.0625, cache_bytes=100)
SECOND = Step(
    (token(2, Origin.DRAFT), token(3, Origin.NGRAM), token(4)),
    (node(Outcome.ACCEPTED), node(Outcome.ACCEPTED), node(Outcome.REJECTED), node(Outcome.UNTESTED)),
    seconds=2.0,
    draft_s=0.5,
    verify_s=1.0,
    cache_bytes=200,
    finish=Finish.EOS,
)


def test_figures_are_what_a_count_by_hand_gives():
    t = tally(PREFILL, FIRST, SECOND)
    assert (t.steps, t.tokens, t.drafted, t.tested, t.accepted) == (2, 4, 4, 3, 2)
    assert t.acceptance_rate == pytest.approx(2 / 3)
    assert t.tokens_per_step == 2
    assert t.ttft_s == 0.75  # the chunk of the prefill that committed nothing included
    assert t.latency_s == 2.75
    assert t.decode_tokens_per_s == 1.5  # three tokens after the first step, in two seconds
    assert t.score == pytest.approx((-2 - 1 - 1 - 1) / 4)
    assert (t.draft_s, t.verify_s) == (0.5625, 1.625)
    shares = {"draft": 0.5625 / 2.75, "verify": 1.625 / 2.75, "other": 0.5625 / 2.75}
    assert t.time_split == pytest.approx(shares)
    assert t.origins == {Origin.TARGET: 2, Origin.DRAFT: 1, Origin.NGRAM: 1}
    assert t.cache_bytes == 200
    assert t.finish == "eos"


def test_figures_without_a_denominator_are_none():
    t = tally()
    assert (t.acceptance_rate, t.tokens_per_step, t.ttft_s, t.decode_tokens_per_s, t.score) == (None,) * 5
    assert tally(FIRST).decode_tokens_per_s is None
    assert speed_up(t, tally(FIRST)) is None
    timeless = tally(Step((token(),)), Step((token(),)))
    assert timeless.decode_tokens_per_s is None and speed_up(timeless, timeless) is None


def test_speed_up_compares_the_same_number_of_tokens():
    plain = tally(*[Step((token(),), seconds=1.0)] * 10)
    speculative = tally(FIRST, SECOND)  # four tokens in 2.25 s
    assert speed_up(plain, speculative) == pytest.approx(4 / 2.25)
    assert plain.latency_at(4) == 4.0
    with pytest.raises(ValueError, match="only 4"):
        speculative.latency_at(5)


steps = st.builds(
    Step,
    st.lists(st.builds(token, st.integers(0, 3), st.sampled_from(Origin)), max_size=4).map(tuple),
    st.lists(st.builds(node, st.sampled_from(Outcome)), max_size=5).map(tuple),
    seconds=st.floats(0.01, 2),
)


@given(st.lists(steps, max_size=12))
def test_laws(taken):
    t = tally(*taken)
    assert t.drafted >= t.tested >= t.accepted
    assert sum(t.origins.values()) == t.tokens
    assert sum(t.time_split.values()) == pytest.approx(1 if taken else 0)
    if t.tokens:
        assert t.latency_at(t.tokens) <= t.latency_s
        assert speed_up(t, t) == 1


def test_lossless_verdicts():
    def path(*ids, finish=Finish.LENGTH):
        parts = [Step((token(id, margin=0.1 * i),)) for i, id in enumerate(ids)]
        return tally(*parts, Step((), finish=finish)) if finish else tally(*parts)

    assert lossless(path(1, 2, 3), path(1, 2, 3), True) == Lossless("identical")
    assert lossless(path(1, 2, 3), path(1, 5, 3), True) == Lossless("diverged", 1, 0.1)
    assert lossless(path(1, 2, 3), path(1, 2), True) == Lossless("diverged", 2, 0.2)
    assert lossless(path(1, 2), path(1, 2, 3), True) == Lossless("diverged", 2, 0.2)
    assert lossless(path(1, 2, 3), path(1, 2, finish=None), True) == Lossless("incomplete")
    assert lossless(path(1, 2, 3), path(1, 5, finish=None), True).verdict == "diverged"
    assert lossless(path(1), path(2), False) == Lossless("same distribution")
    assert lossless(path(1), path(2, finish=None), False) == Lossless("same distribution")
    for cut in (path(finish=None), path(finish=Finish.FAILED), path(2, finish=Finish.FAILED)):
        assert lossless(path(1), cut, False) == Lossless("incomplete")


def test_a_near_tie_and_a_fault_read_differently():
    assert "near-tie" in scoreboard.sentence(Lossless("diverged", 4, 0.125), "bf16")
    assert "token 5" in scoreboard.sentence(Lossless("diverged", 4, 0.125), "bf16")
    assert "fault" in scoreboard.sentence(Lossless("diverged", 4, 0.125), "fp32")
    assert "near-tie within the rounding of int8" in scoreboard.sentence(Lossless("diverged", 4, 0.125), "fp32", "int8")


def test_every_row_of_the_scoreboard_has_a_definition_and_survives_an_empty_race():
    rows = scoreboard.rows(Tally(), Tally())
    assert {row.key for row in rows} <= DEFINITIONS.keys()
    filled = {row.key: row for row in scoreboard.rows(tally(FIRST, SECOND), tally(FIRST, SECOND))}
    assert filled["speed_up"].joint == "1.00×"
    assert filled["acceptance_rate"].speculative == "67%"
    assert filled["decode_tokens_per_s"].plain == "1.5"
    assert filled["memory"].plain == "–"


def test_each_path_needs_its_own_weights_and_cache():
    models = {"target_weight_bytes": 600_000_000, "draft_weight_bytes": 30_000_000}
    row = next(row for row in scoreboard.rows(tally(FIRST, SECOND), tally(FIRST), models) if row.key == "memory")
    assert (row.plain, row.speculative) == ("600", "630")
