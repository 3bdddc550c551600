"""Outputs: one message per frontend, entries in order, each token once."""

import dataclasses

import pytest

from engine_core.request import FinishReason, Request
from engine_core.scheduler.outputs.outputs import Outputs, Start, encode_outputs
from pagewire.internal.v1.engine_pb2 import LogprobColumns, PromptLogprobs
from pagewire.ipc.columns import unpack_u8, unpack_u32, unpack_u64
from pagewire.v1 import generation_pb2
from tests.engine_core.fakes import add_request, make
from tests.logprob_columns import Scored, put_together, take_apart, top


def request(frontend: bytes, handle: int, n: int = 1) -> Request:
    return make(add_request(handle, n=n), frontend=frontend)


def test_the_reasons_are_those_of_the_public_api() -> None:
    public = {
        name.removeprefix("FINISH_REASON_").replace("UNSPECIFIED", "NONE"): number
        for name, number in generation_pb2.FinishReason.items()
        # Frontends find these two: the core knows nothing of tools and repetitions.
        if name not in ("FINISH_REASON_TOOL_CALLS", "FINISH_REASON_REPETITION")
    }
    assert {reason.name: reason.value for reason in FinishReason} == public


def test_one_message_for_each_frontend() -> None:
    a, b = request(b"a", 1, n=2), request(b"b", 1)
    outputs = Outputs()
    outputs.finish(a.sequences[1], FinishReason.ABORTED)
    first = outputs.add_tokens([a.sequences[0], b.sequences[0]], [70, 80])
    outputs.finishes[first + 1] = FinishReason.EOS, 80
    outputs.started += [Start(b, 0.25, 0), Start(a, 0.5, 32)]
    messages = dict(encode_outputs(outputs, epoch=5, step=6))
    of_a, of_b = messages[b"a"], messages[b"b"]
    assert (of_a.epoch, of_a.step) == (5, 6)
    assert unpack_u64(of_a.handles) == [1, 1]
    assert unpack_u32(of_a.indexes) == [1, 0]
    assert unpack_u32(of_a.counts) == [0, 1]
    assert unpack_u32(of_a.token_ids) == [70]
    assert unpack_u8(of_a.finish_reasons) == [FinishReason.ABORTED, 0]
    assert unpack_u32(of_a.started_queue_us) == [500_000]
    assert unpack_u32(of_a.started_cached_tokens) == [32]
    assert unpack_u32(of_b.token_ids) == [80]
    assert unpack_u8(of_b.finish_reasons) == [FinishReason.EOS]
    assert unpack_u32(of_b.finish_token_ids) == [80]
    assert unpack_u64(of_b.started_handles) == [1]


def scored(*values: float) -> LogprobColumns:
    """Tokens with these log-probabilities, and one candidate each."""
    return put_together([Scored(value, 1, [int(-value)], [value], [1]) for value in values])


def test_log_probabilities_go_to_their_requests() -> None:
    """Some tokens have them, some sequences have ended, and two steps travel in one message."""
    a, b, silent = request(b"a", 1, n=2), request(b"b", 1), request(b"a", 3)
    for wanting in (a, b):
        wanting.parameters = dataclasses.replace(wanting.parameters, logprobs=top(1))
    outputs = Outputs()
    planned = [b.sequences[0], silent.sequences[0], a.sequences[0], a.sequences[1]]
    first = outputs.add_tokens(planned, [10, 11, 12, 13])
    outputs.add_scores(first, planned, (), scored(-1, -2, -3))
    first = outputs.add_tokens(planned[1:], [20, 21, 22])
    outputs.add_scores(first, planned, (), scored(-4, -5, -6))  # b has ended meanwhile
    outputs.add_prompt_part(a, 7, scored(-8, -9))
    messages = dict(encode_outputs(outputs, 1, 1))
    of_a, of_b = messages[b"a"], messages[b"b"]
    assert unpack_u32(of_a.token_ids) == [11, 12, 13, 20, 21, 22]
    assert unpack_u8(of_a.has_logprobs) == [0, 1, 1, 0, 1, 1]
    assert [token.logprob for token in take_apart(of_a.logprobs)] == [-2, -3, -5, -6]
    assert [token.ids for token in take_apart(of_a.logprobs)] == [[2], [3], [5], [6]]
    assert unpack_u8(of_b.has_logprobs) == [1]
    assert of_b.logprobs == scored(-1)
    assert list(of_a.prompt_logprobs) == [PromptLogprobs(handle=1, start=7, columns=scored(-8, -9))]
    assert not of_b.prompt_logprobs


def test_those_of_a_prompt_are_reason_enough_for_a_message() -> None:
    outputs = Outputs()
    outputs.add_prompt_part(request(b"a", 1), 1, scored(-1))
    ((frontend, message),) = encode_outputs(outputs, 1, 1)
    assert outputs and frontend == b"a" and len(message.prompt_logprobs) == 1
    assert not message.handles and not message.has_logprobs


def test_positions_count_what_the_frontend_holds() -> None:
    a = request(b"a", 1)
    a.sequences[0].output.extend([4, 5, 6])
    outputs = Outputs()
    outputs.add_tokens(a.sequences, [7])
    (message,) = (message for _, message in encode_outputs(outputs, 1, 1))
    assert unpack_u32(message.positions) == [3]


def test_nothing_is_nothing() -> None:
    assert not Outputs()
    assert dict(encode_outputs(Outputs(), 1, 1)) == {}


@pytest.mark.parametrize(("seconds", "expected"), [(-1.0, 0), (1e9, 2**32 - 1), (1.5e-6, 2)])
def test_a_time_in_the_queue_fits_its_column(seconds: float, expected: int) -> None:
    outputs = Outputs(started=[Start(request(b"a", 1), seconds, 0)])
    (message,) = (message for _, message in encode_outputs(outputs, 1, 1))
    assert unpack_u32(message.started_queue_us) == [expected]


def test_the_order_of_messages_does_not_depend_on_hashes() -> None:
    """A set of identities had an order of its own in each process, so that no run could be repeated."""
    names = [bytes([number]) * 16 for number in (7, 3, 9, 1, 5)]
    outputs = Outputs()
    outputs.add_tokens([request(name, 1).sequences[0] for name in names[1:]], [4, 5, 6, 7])
    outputs.started += [Start(request(name, 2), 0.0, 0) for name in names]
    assert [frontend for frontend, _ in encode_outputs(outputs, 1, 1)] == [*names[1:], names[0]]
