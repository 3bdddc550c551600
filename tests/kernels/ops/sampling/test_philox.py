"""The generator against the known answers of its authors, and the vectorized twin against the plain one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.ops.sampling.choose import philox4x32, uniform53
from kernels.ops.sampling.philox_constants import MASK
from tests.kernels.references.sampling import philox4x32_reference, uniform53_reference

WORD = st.integers(0, MASK)

# Random123, tests/kat_vectors: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], result: tuple[int, int, int, int]
) -> None:
    assert philox4x32_reference(counter, key) == result
    assert tuple(philox4x32(torch.tensor([counter]), torch.tensor([key]))[0].tolist()) == result


@given(st.lists(st.tuples(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD)), min_size=1, max_size=9))
def test_vectorized_equals_plain(
    blocks: list[tuple[tuple[int, int, int, int], tuple[int, int]]],
) -> None:
    """Over the whole range of words: a product of two of them does not fit a signed 64-bit integer."""
    counters, keys = zip(*blocks, strict=True)
    words = philox4x32(torch.tensor(counters), torch.tensor(keys))
    assert [tuple(row) for row in words.tolist()] == [philox4x32_reference(*block) for block in blocks]


@given(st.tuples(WORD, WORD, WORD, WORD))
def test_uniform_equals_plain(words: tuple[int, int, int, int]) -> None:
    assert uniform53(torch.tensor([words])).item() == uniform53_reference(words)


def test_uniform_range() -> None:
    """The smallest is 0, the largest is below 1, and the last of the 53 bits counts."""
    words = torch.tensor([[0, 0, 0, 0], [MASK] * 4, [0, 1 << 11, 0, 0]])
    assert uniform53(words).tolist() == [0.0, 1 - 2.0**-53, 2.0**-53]
