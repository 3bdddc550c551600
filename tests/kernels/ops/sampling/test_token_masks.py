"""Masks."""

import pytest
import torch

from kernels.ops.sampling.token_masks import ANY, FEW, Prohibitions, forbid_tokens, prohibit
from tests.kernels.references.sampling import forbid_tokens_reference, prohibit_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits


def test_forbid_equals_reference() -> None:
    """Active and inactive, also for the same token, in either order."""
    logits = tied_logits(5, 30)
    batch_index = torch.tensor([4, 2, 0])
    token_ids = torch.tensor([[3, 29, 3], [3, 29, 3], [15, 0, 1]])
    active = torch.tensor([[True, False, False], [False, True, True], [False, False, False]])
    expected = forbid_tokens_reference(logits, batch_index, token_ids, active)
    forbid_tokens(logits, batch_index, token_ids, active)
    assert torch.equal(logits, expected)


def test_a_row_is_never_left_without_a_token() -> None:
    """Row 0 would lose its last token: it stays as it was. Row 1 loses the same tokens and has another."""
    inf = torch.inf
    logits = torch.tensor([[1.0, -inf, 2.0], [1.0, 0.0, 2.0]])
    token_ids, active = torch.tensor([[0, 2], [0, 2]]), torch.ones(2, 2, dtype=torch.bool)
    expected = forbid_tokens_reference(logits, torch.arange(2), token_ids, active)
    forbid_tokens(logits, torch.arange(2), token_ids, active)
    assert torch.equal(logits, expected)
    assert torch.equal(logits, torch.tensor([[1.0, -inf, 2.0], [-inf, 0.0, -inf]]))


def test_nan_is_not_hidden() -> None:
    """A broken row is still broken afterwards, so that it ends in an error and not in a token."""
    logits = torch.tensor([[torch.nan, 1.0, 2.0]])
    forbid_tokens(logits, torch.tensor([0]), torch.tensor([[1]]), torch.tensor([[True]]))
    assert logits.isnan().any()


@pytest.mark.parametrize(("users", "count"), [(0, 2), (1, 1), (3, 40)])
def test_sizes(users: int, count: int) -> None:
    """No row; one token; lists as long as the vocabulary, with repeats."""
    generator = torch.Generator().manual_seed(count)
    logits = smooth_logits(4, 31)
    batch_index = torch.randperm(4, generator=generator)[:users]
    token_ids = torch.randint(0, 31, (users, count), generator=generator)
    active = torch.rand(users, count, generator=generator) < 0.5
    expected = forbid_tokens_reference(logits, batch_index, token_ids, active)
    forbidden = logits.clone()
    forbid_tokens(forbidden, batch_index, token_ids, active)
    assert torch.equal(forbidden, expected)


def test_what_is_left_may_lie_far_behind() -> None:
    """The first FEW tokens are all forbidden or masked: the row still has one, beyond them."""
    logits = torch.full((2, FEW + 5), -torch.inf)
    logits[:, 3] = 2.0
    logits[0, FEW + 4] = 1.0
    ids, active = torch.tensor([[3], [3]]), torch.ones(2, 1, dtype=torch.bool)
    expected = forbid_tokens_reference(logits, torch.arange(2), ids, active)
    forbid_tokens(logits, torch.arange(2), ids, active)
    assert torch.equal(logits, expected)
    assert logits[0, 3] == -torch.inf and logits[1, 3] == 2.0


@pytest.mark.parametrize("seed", range(20))
def test_prohibitions_equal_the_reference(seed: int) -> None:
    """Words of up to three tokens of four, of slots in any order; outputs of up to nine tokens; prefixes with
    more capacity than there are words; stop tokens before and after min_tokens."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)

    most_words = 3 + seed % 3
    columns = numbers(0, 4, 6), numbers(2, 3, 6), numbers(0, 3, 6), numbers(0, 9, 6), numbers(0, 5, 6)
    columns[4].clamp_(max=columns[0])
    prefix = torch.where(numbers(0, 2, 6, 5, 2) > 0, numbers(0, 4, 6, 5, 2), ANY)
    last, outputs, stops = numbers(0, 4, 6, most_words), numbers(0, 4, 6, 9), numbers(0, 9, 6, 2)
    state = Prohibitions(last, prefix, outputs, stops, torch.stack(columns, 1))
    logits, slots = tied_logits(5, 9), [4, -1, 0, 5, 2]
    logits[2, 4:] = -torch.inf
    positions = [9, 9, 0, 5, 12 - 3 * (seed % 2)]
    state.numbers[2, [0, 4]] *= seed % 2  # without words, the output is not recorded
    expected = prohibit_reference(logits, slots, positions, state)
    prohibit(logits, torch.tensor(slots), torch.tensor(positions), state)
    assert torch.equal(logits, expected)
    none = torch.empty(0, dtype=torch.int64)
    prohibit(logits[:0], none, none, state)
