"""The verdict over a benchmark: only what the interval says, only of lossless modes, and the cost that explains it."""

import pytest

from specdemo.measure.advisor import advice


def average(mode, ratio, interval, dtype="fp32", quantization="none", prompts=5, length=16, cost=1.5, surely=None):
    return {
        "mode": mode,
        "dtype": dtype,
        "quantization": quantization,
        "draft_length": length,
        "prompts": prompts,
        "speed_up": ratio,
        "speed_up_interval": interval,
        "speed_up_surely": surely or (interval and interval[0]),
        "step_cost": cost,
    }


PLAIN = average("plain", 1.0, (1.0, 1.0), length=None, cost=1.0)


@pytest.mark.parametrize(
    ("ratio", "interval", "said"),
    [
        (1.6, (1.4, 1.8), "fp32: speculate, with tree, draft length 16."),
        (0.8, (0.7, 0.9), "fp32: do not speculate."),
        (1.1, (0.9, 1.3), "fp32: no verdict yet"),
        (0.9, (0.8, 1.0), "fp32: no verdict yet"),
        (1.6, None, "fp32: no verdict yet"),
    ],
)
def test_the_verdict_is_what_the_interval_leaves_no_doubt_about(ratio, interval, said):
    (sentence,) = advice([PLAIN, average("tree", ratio, interval)])
    assert sentence.startswith(said) and f"{ratio:.2f} times as fast as plain decoding" in sentence


def test_it_says_what_a_step_costs_and_what_it_would_have_to_commit():
    (sentence,) = advice([average("ngram", 0.8, (0.7, 0.9), cost=1.5)])
    assert "A step costs 1.50 plain ones and commits 1.20 tokens: it pays from 1.50 on." in sentence


def test_each_precision_has_its_own_best_lossless_mode():
    found = advice(
        [
            PLAIN,
            average("tree", 1.3, (1.2, 1.4)),
            average("ngram", 1.5, (1.3, 1.7)),
            average("draft-then-score", 3.0, (2.9, 3.1)),
            average("transformers prompt lookup", 2.0, (1.9, 2.1), cost=None),
            average("tree", 0.7, (0.6, 0.8), dtype="bf16", quantization="nf4"),
        ]
    )
    assert [sentence.split(".")[0] for sentence in found] == [
        "fp32: speculate, with ngram, draft length 16",
        "bf16, nf4: do not speculate",
    ]


def test_where_nothing_drafted_there_is_nothing_to_say():
    assert advice([PLAIN, average("tree", None, None)]) == []


def test_the_best_of_several_needs_more_than_its_own_interval():
    """A setting that was chosen because it looked best looks better than it is."""
    lucky = average("tree", 1.2, (1.01, 1.4), surely=0.98)
    (sentence,) = advice([lucky, average("ngram", 1.1, (0.9, 1.3))])
    assert sentence.startswith("fp32: no verdict yet") and "(5 prompts, best of 2 settings, 95% interval" in sentence
    (sentence,) = advice([lucky, average("ngram", 1.1, (1.05, 1.15), surely=1.04)])
    assert sentence.startswith("fp32: speculate, with ngram, draft length 16. It was 1.10")


def test_it_advises_against_speculation_only_where_no_setting_may_pay():
    slow, open_ = average("tree", 0.9, (0.85, 0.95)), average("ngram", 0.8, (0.5, 1.2))
    assert advice([slow, open_])[0].startswith("fp32: no verdict yet")
    assert advice([slow, average("ngram", 0.8, (0.7, 0.9))])[0].startswith("fp32: do not speculate.")
