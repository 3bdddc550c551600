"""Tokens depend on prompt, seed, index and position, and on nothing else."""

from collections.abc import Callable

import numpy as np
import pytest

from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from pagewire_simulated.tokens import NO_TOKEN, TokenSource, mix, mix_all, token_reference
from tests.engine_core.fakes import add_request

EOS = (2, 7)
CANDIDATES = [token for token in range(320) if token not in EOS]


def prompt_of(message: engine_pb2.AddRequest) -> list[int]:
    return np.frombuffer(message.prompt_token_ids, "<u4").tolist()


def expected(message: engine_pb2.AddRequest, index: int, length: int) -> list[int]:
    seed = message.sampling.seed
    return [
        token_reference(prompt_of(message), seed, index, position, CANDIDATES) for position in range(length)
    ]


def requests() -> list[engine_pb2.AddRequest]:
    """Twelve, of which every third has three sequences."""
    return [
        add_request(
            handle, [3 + (handle * i) % 300 for i in range(5 + 3 * handle)], n=3 if handle % 3 == 0 else 1,
            max_tokens=9 + handle,
        )
        for handle in range(1, 13)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "preempts"),
    [
        ({}, False),
        ({"budget": 7, "rows": 7}, False),
        ({"num_blocks": 34}, True),
        ({"num_blocks": 34, "budget": 9, "rows": 9}, True),
        ({"rows": 3}, False),
    ],
    ids=["at once", "chunked", "preempted", "chunked and preempted", "few rows"],
)
def test_however_it_is_scheduled(in_process: Callable[..., object], limits: dict[str, int], preempts: bool):
    core = in_process(**limits)
    outputs = core.outputs(*requests())  # type: ignore[attr-defined]
    assert (core.scheduler.num_preemptions > 0) == preempts  # type: ignore[attr-defined]
    assert sum(len(tokens) for tokens in outputs.values()) == sum(
        message.sampling.n * message.stopping.max_tokens for message in requests()
    )
    for message in requests():
        for index in range(message.sampling.n):
            assert outputs[message.handle, index] == expected(message, index, message.stopping.max_tokens)


def test_a_stream_that_was_delivered_in_part_goes_on(in_process: Callable[..., object]):
    whole = add_request(5, 9, n=2, max_tokens=12)
    first, second = expected(whole, 0, 12), expected(whole, 1, 12)
    rest = add_request(5, 9, n=2, max_tokens=12, delivered={0: first[:4], 1: second[:7]})
    outputs = in_process().outputs(rest)  # type: ignore[attr-defined, operator]
    assert outputs == {(5, 0): first, (5, 1): second}


def new_row(index: int = 0, **changes: object) -> worker_pb2.NewRow:
    """Prompt 5, 6 and an output token of 9."""
    sampling: dict[str, object] = {"temperature": 1.0, "seed": 77}
    stops = changes.pop("stops", EOS)
    return worker_pb2.NewRow(
        token_ids=pack_u32([5, 6, 9]),
        prompt_len=2,
        sequence_index=index,
        sampling=generation_pb2.SamplingParams(**(sampling | changes)),  # type: ignore[arg-type]
        stop_token_ids=stops,  # type: ignore[arg-type]
    )


def sampled(*rows: worker_pb2.NewRow, length: int = 200) -> list[list[int]]:
    """The first tokens of each row, all rows together in one call per position."""
    source = TokenSource(8, 320, EOS)
    for row, new in enumerate(rows):
        source.add_row(row, new, [5, 6], [9])
    every = np.arange(len(rows))
    steps = [source.sample(every, every * 0 + position).tolist() for position in range(length)]
    return [list(tokens) for tokens in zip(*steps, strict=True)]


def test_prompt_seed_index_and_position_matter():
    other = new_row()
    other.token_ids = pack_u32([5, 8, 9])
    rows = sampled(new_row(), new_row(1), new_row(seed=78), other)
    assert rows[0] == [token_reference([5, 6], 77, 0, position, CANDIDATES) for position in range(200)]
    for row in rows:
        assert len(set(row)) > 100
        assert sum(ours == theirs for ours, theirs in zip(row, rows[0], strict=True)) in (*range(8), 200)


def test_greedy_sequences_are_equal():
    rows = sampled(new_row(temperature=0.0), new_row(3, temperature=0.0, seed=5))
    assert rows[0] == rows[1] == [token_reference([5, 6], 0, 0, at, CANDIDATES) for at in range(200)]


def test_stop_tokens_only_where_they_are_asked_for():
    plain, stopping, ignoring, asked, bad, none = sampled(
        new_row(),
        new_row(stops=(2, 7, *range(100, 310))),
        new_row(stops=()),
        new_row(allowed_token_ids=[7, 2, 40]),
        new_row(allowed_token_ids=[7, 40, 1000], bad_token_ids=[40]),
        new_row(allowed_token_ids=[40], bad_token_ids=[40]),
        length=4000,
    )
    assert set(plain) == set(CANDIDATES)
    assert set(stopping) == set(CANDIDATES) - {*range(100, 310)}
    assert ignoring == plain
    assert set(asked) == {2, 7, 40}
    assert set(bad) == {7}
    assert set(none) == {NO_TOKEN}


def test_a_row_number_can_be_used_again():
    source = TokenSource(2, 320, EOS)
    source.add_row(0, new_row(allowed_token_ids=[9]), [5, 6], [9])
    source.fork_row(1, 0, 1)
    assert source.sample(np.array([0, 1]), np.array([0, 0])).tolist() == [9, 9]
    for row in (0, 1):
        source.remove_row(row)
        source.add_row(row, new_row(row), [5, 6], [9])
    assert source.sample(np.array([1, 0]), np.array([4, 3])).tolist() == [
        token_reference([5, 6], 77, 1, 4, CANDIDATES),
        token_reference([5, 6], 77, 0, 3, CANDIDATES),
    ]


def test_mix():
    """SplitMix64's first numbers from seed 0, as its author publishes them."""
    gamma = 0x9E3779B97F4A7C15
    states = [gamma, 2 * gamma, 3 * gamma]
    numbers = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix(state) for state in states] == numbers
    wrapped = np.array([state & (1 << 64) - 1 for state in states], np.uint64)
    assert mix_all(wrapped).tolist() == numbers
