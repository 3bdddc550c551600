"""The workloads have the sizes that published figures are of."""

import pytest

from pagewire_bench.workloads import ALL, SHORT, WORKLOADS, Request

SIZES = {
    "W1": (1, 128, 128),
    "W2": (32, 4096, 4096),
    "W3": (64, 17_700, 9823),
    "W4": (32, 32 * 544, 1024),
    "W5": (1, 2048, 64),
}


def requests(short: str, repetition: int = 0, max_model_len: int = 4096) -> list[Request]:
    return WORKLOADS[SHORT[short]].requests(repetition, 1000, max_model_len)


@pytest.mark.parametrize("short", SIZES)
def test_sizes(short: str) -> None:
    made = requests(short)
    tokens = sum(len(request.prompt) for request in made), sum(request.output for request in made)
    assert (len(made), *tokens) == SIZES[short]
    lengths = WORKLOADS[SHORT[short]].lengths(4096)
    assert [(prefix + own, output) for prefix, own, output in lengths] == [
        (len(request.prompt), request.output) for request in made
    ]


def test_the_first_token_alone() -> None:
    (request,) = ALL["first"].requests(0, 1000, 4096)
    assert (len(request.prompt), request.output) == (128, 1)


@pytest.mark.parametrize("short", SIZES)
def test_ids_are_new_in_each_repetition_and_lengths_are_not(short: str) -> None:
    """Otherwise a prefix cache would answer from the repetition before; a block has 16 tokens at least."""
    first, second = requests(short), requests(short, 1)
    assert [len(request.prompt) for request in first] == [len(request.prompt) for request in second]
    assert not {tuple(r.prompt[:8]) for r in first} & {tuple(r.prompt[:8]) for r in second}
    assert first == requests(short)


def test_prefixes_are_common_where_they_should_be() -> None:
    assert len({tuple(request.prompt[:512]) for request in requests("W4")}) == 1
    assert len({tuple(request.prompt[:513]) for request in requests("W4")}) > 1
    assert len({tuple(request.prompt[:8]) for request in requests("W2")}) == 32


def test_a_short_context_shrinks_all_lengths_alike() -> None:
    (request,) = requests("W5", max_model_len=1056)
    assert (len(request.prompt), request.output) == (1024, 32)
