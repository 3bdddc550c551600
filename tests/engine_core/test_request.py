"""Counters of a sequence: what plans count ahead, and what results confirm."""

from array import array

from engine_core.request import FinishReason, Sequence, plan_one_each, take_one_each
from tests.engine_core.fakes import EOS, add_request, make


def decoding(**options: object) -> Sequence:
    """A sequence of 5 prompt tokens whose prompt is computed and whose first token is known."""
    (sequence,) = make(add_request(1, 5, **options)).sequences  # type: ignore[arg-type]
    sequence.set_computed(5)
    sequence.plan_samples(1)
    assert take_one_each([sequence], [7]) == []
    return sequence


def counters(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.num_tokens, sequence.num_computed_tokens, sequence.num_uncertain_tokens


def test_one_token_each():
    sequences = [decoding(max_tokens=3), decoding(max_tokens=9), decoding(max_tokens=9)]
    plan_one_each(sequences)
    plan_one_each(sequences[:2])  # one step ahead
    assert [counters(sequence) for sequence in sequences] == [(8, 7, 0), (8, 7, 0), (7, 6, 0)]
    assert take_one_each(sequences, [8, 9, EOS]) == [0, 2]  # the first one only may have reached its limit
    assert [list(sequence.output) for sequence in sequences] == [[7, 8], [7, 9], [7, EOS]]


def test_several_tokens_are_counted_and_make_the_sequence_wait():
    sequence = decoding(max_tokens=9)
    sequence.set_computed(sequence.num_tokens)
    sequence.plan_samples(4)
    assert counters(sequence) == (10, 9, 3)
    assert not sequence.can_advance and sequence.num_tokens > sequence.num_slots
    assert sequence.take([8, 9, 10, 11], 4) == 4
    assert counters(sequence) == (10, 9, 0) and sequence.can_advance


def test_a_shorter_result_takes_back_what_was_planned_beyond_it():
    sequence = decoding(max_tokens=9)
    sequence.set_computed(sequence.num_tokens)
    sequence.plan_samples(4)
    assert sequence.take([8, 9], 4) == 2
    assert counters(sequence) == (8, 7, 0) and list(sequence.output) == [7, 8, 9]
    assert sequence.num_new_tokens == 1


def test_tokens_behind_a_stop_token_are_dropped():
    sequence = decoding(max_tokens=9)
    sequence.set_computed(sequence.num_tokens)
    sequence.plan_samples(4)
    assert sequence.take([8, EOS, 9, 10], 4) == 2
    assert list(sequence.output) == [7, 8, EOS]


def test_a_stop_token_below_min_tokens_is_a_token():
    sequence = decoding(max_tokens=9, min_tokens=4)
    sequence.set_computed(sequence.num_tokens)
    sequence.plan_samples(3)
    assert sequence.take([EOS, 8, 9], 3) == 3


def test_the_result_of_an_older_plan_leaves_uncertain_tokens_alone():
    """Plan k samples one token, plan k + 1 three; the result of plan k comes beside several of other rows."""
    sequence = decoding(max_tokens=9)
    plan_one_each([sequence])
    sequence.set_computed(sequence.num_tokens)
    sequence.plan_samples(3)
    assert counters(sequence) == (10, 9, 2)
    assert sequence.take([8], 1) == 1
    assert counters(sequence) == (10, 9, 2)
    assert sequence.take([9], 3) == 1
    assert counters(sequence) == (8, 7, 0)


def test_preemption_counts_the_certain_token_alone():
    sequence = decoding(max_tokens=9)
    sequence.set_computed(sequence.num_tokens)
    sequence.plan_samples(3)
    sequence.drop_uncertain()
    assert counters(sequence) == (7, 6, 0)
    sequence.set_computed(0)
    assert sequence.take([8, 9], 3) == 2
    assert counters(sequence) == (8, 0, 0) and sequence.num_known_tokens == 8


def test_eos_ends_an_output_with_a_grammar_also_below_min_tokens():
    """The worker allows it there only where the grammar allows nothing else."""
    message = add_request(1, 5, max_tokens=9, min_tokens=4, stop_token_ids=[8])
    message.grammar = "start: /a/"
    request = make(message)
    assert request.ending(array("I", [])) == (FinishReason.NONE, 0)
    assert request.ending(array("I", [7, EOS])) == (FinishReason.EOS, EOS)
    assert request.ending(array("I", [7, 8])) == (FinishReason.NONE, 0)
    assert request.ending(array("I", [7, 7, 7, 7, 8])) == (FinishReason.STOP, 8)
