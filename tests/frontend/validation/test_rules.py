"""Each rule accepts exactly the values that its range names."""

import dataclasses
from math import inf, nan

import pytest
from google.protobuf.duration_pb2 import Duration

from frontend.validation import rules
from frontend.validation.fields import FIELDS
from frontend.validation.rules import Limits
from pagewire.limits import MAX_LOGIT_BIAS, MAX_TOKEN_IDS
from pagewire.v1 import generation_pb2

LIMITS = Limits(100, 50, frozenset({2}), 4, 2, max_priority=10, max_logprobs=3, num_ranks=2)


@pytest.mark.parametrize(
    ("rule", "valid", "invalid"),
    [
        (rules.number(0, 1), (0, 0.5, 1), (-0.1, 1.1, nan, inf)),
        (rules.number(0, 1, above=True), (0.1, 1), (0, nan)),
        (rules.known_value(generation_pb2.FinishReason), (0, 1), (99,)),
        (rules.AT_LEAST_ONE, (1, 2**31 - 1), (0, 2**31)),
        (rules.IDENTIFIER, ("", "a" * 256, "é"), ("a" * 257, "é" * 129, "a\n")),
        (rules.PRIORITY, (-10, 0, 10), (-11, 11)),
        (rules.RANK, (0, 1), (2,)),
        (rules.SEQUENCES, (1, 4), (0, 5)),
        (rules.STOP_STRINGS, ([], ["a", "b" * 1024]), (["a"] * 3, [""], ["é" * 513])),
        (rules.BAD_WORDS, (["a"] * 128,), (["a"] * 129,)),
        (rules.TOKEN_IDS, ([], [0, 99]), ([100], [1] * 101)),
        (rules.LOGIT_BIAS, ({1: 100.0, 2: -100.0},), ({1: 100.5}, {100: 1.0})),
        (rules.TOP_N, (0, 3), (4,)),
        (rules.CANDIDATE_IDS, ([1, 2, 3],), ([1, 1], [1, 2, 3, 4], [100])),
        (rules.ALL_CANDIDATES, (False,), (True,)),
        (
            rules.TIME_LIMIT,
            (Duration(nanos=1),),
            (Duration(), Duration(seconds=-1), Duration(seconds=1 << 40)),
        ),
    ],
)
def test_a_rule_accepts_its_range(rule, valid, invalid):
    assert rule.range
    assert [value for value in valid if rule(value, LIMITS) is not None] == []
    assert [value for value in invalid if rule(value, LIMITS) is None] == []


def test_a_priority_under_fcfs_says_why():
    assert "--policy fcfs" in rules.priority_problem(1, Limits(1, 1, frozenset(), 1, 1))


def test_a_bias_is_of_so_many_tokens():
    """Each costs time in each step, which other streams wait for."""
    limits = dataclasses.replace(LIMITS, vocab_size=2 * MAX_LOGIT_BIAS)
    biases = dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0)
    assert rules.LOGIT_BIAS(biases, limits) is None
    problem = rules.LOGIT_BIAS(biases | {MAX_LOGIT_BIAS: 1.0}, limits)
    assert problem is not None and "at most 4096 tokens, not 4097" in problem


def test_barred_tokens_and_stop_tokens_are_so_many():
    """As biases. The mask of allowed tokens takes as long however many they are."""
    limits = dataclasses.replace(LIMITS, vocab_size=2 * MAX_TOKEN_IDS)
    for path in ("sampling.bad_token_ids", "stopping.stop_token_ids", "sampling.allowed_token_ids"):
        rule = FIELDS[path]
        assert isinstance(rule, rules.Rule)
        assert rule(range(MAX_TOKEN_IDS), limits) is None
        problem = rule(range(MAX_TOKEN_IDS + 1), limits)
        assert (problem is None) == path.endswith("allowed_token_ids")
        assert problem is None or "at most 4096 ids, not 4097" in problem


def test_candidates_are_counted():
    options = generation_pb2.LogprobOptions
    assert rules.num_candidates(options(), 100) == 0
    assert rules.num_candidates(options(top_n=2), 100) == 2
    assert rules.num_candidates(options(token_ids={"ids": [1, 2, 3]}), 100) == 3
    assert rules.num_candidates(options(all=True), 100) == 100
