"""Bad words and stop tokens that are not allowed yet."""

import pytest
import torch

from kernels.ops.sampling.token_masks import ANY, Prohibitions
from kernels.triton.sampling import forbid_tokens as module
from kernels.triton.sampling.forbid_tokens import forbid_tokens
from tests.kernels.references.sampling import prohibit_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

V = 70


def prohibitions() -> Prohibitions:
    """Slot 0: words of one to three tokens, one of them twice, after 7 5 3; 1: everything is forbidden; 2:
    all but one are, and the stop tokens are that one; 3: nothing."""
    last, prefix = torch.zeros(4, V, dtype=torch.int32), torch.full((4, 5, 2), ANY, dtype=torch.int32)
    last[0, :6] = torch.tensor([9, 8, 8, 6, 4, 1])
    prefix[0, 1] = torch.tensor([3, ANY])
    prefix[0, 2] = torch.tensor([4, ANY])
    prefix[0, 3] = torch.tensor([3, 5])
    prefix[0, 4] = torch.tensor([3, 7])
    last[1:3] = torch.arange(V)
    stops = torch.tensor([[2, 9, 2], [5, 6, 7], [V - 1, 0, 0], [0, 1, 2]], dtype=torch.int32)
    numbers = torch.tensor(
        [[6, 2, 3, 5, 5], [V, 0, 3, 5, 0], [V - 1, 0, 1, 9, 0], [0] * 5], dtype=torch.int32
    )
    return Prohibitions(last, prefix, torch.tensor([[7, 5, 3, 1]] * 4, dtype=torch.int32), stops, numbers)


@pytest.mark.parametrize("make", [smooth_logits, tied_logits])
def test_forbids(make, device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Complete words, at the output's beginning too; lists that would leave nothing; several tiles."""
    monkeypatch.setattr(module, "ENTRIES", 4)
    monkeypatch.setattr(module, "WIDTH", 16)
    state = prohibitions()
    slots, positions = [0, 0, 0, 0, 1, 2, -1, 3], [3, 1, 0, 5, 2, 4, 3, 3]
    logits = make(len(slots), V)
    logits[3, 9] = torch.nan
    exact = prohibit_reference(logits, slots, positions, state)
    result = logits.clone().to(device)
    columns = (torch.tensor(column, dtype=torch.int32, device=device) for column in (slots, positions))
    forbid_tokens(result, *columns, Prohibitions(*(table.to(device) for table in vars(state).values())))
    torch.testing.assert_close(result.cpu(), exact, rtol=0, atol=0, equal_nan=True)
    assert (exact[0, [9, 8, 6, 1, 2]] == -torch.inf).all() and exact[0, 4] == logits[0, 4]
    assert (exact[2, [9, 1]] == -torch.inf).all() and exact[2, 8] == logits[2, 8]


def state_of(
    words: list[tuple[list[int], int]], said: list[int], stops: list[int], least: int
) -> Prohibitions:
    """The state of slot 2 of three; the others forbid everything. words: what comes before, nearest token
    first, and the last token; those with something before it come first, as the sampler writes them."""
    words = sorted(words, key=lambda word: not word[0])
    longer = [prefix for prefix, _ in words if prefix]
    room = max(map(len, longer), default=0)
    last, outputs = torch.arange(V).repeat(3, 1).int(), torch.full((3, 12), 1, dtype=torch.int32)
    prefix = torch.full((3, 4, room + 1), ANY, dtype=torch.int32)
    stop_ids, numbers = torch.arange(V).repeat(3, 1).int(), torch.tensor([[V, 0, V, 99, 0]] * 3).int()
    last[2, : len(words)] = torch.tensor([token for _, token in words])
    for n, tokens in enumerate(longer):
        prefix[2, n, : len(tokens)] = torch.tensor(tokens)
    outputs[2, : len(said)] = torch.tensor(said, dtype=torch.int32)
    stop_ids[2, : len(stops)] = torch.tensor(stops, dtype=torch.int32)
    numbers[2] = torch.tensor([len(words), room, len(stops), least, len(longer)])
    return Prohibitions(last, prefix, outputs, stop_ids, numbers)


def forbidden(state: Prohibitions, position: int, device: torch.device) -> list[int]:
    """The tokens of a row of slot 2 that become -inf; the reference agrees."""
    logits = smooth_logits(2, V)
    slots, positions = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([-1, 2], [0, position]))
    result = logits.clone().to(device)
    forbid_tokens(
        result, slots, positions, Prohibitions(*(table.to(device) for table in vars(state).values()))
    )
    exact = prohibit_reference(logits, [-1, 2], [0, position], state)
    assert torch.equal(result.cpu(), exact) and torch.equal(exact[0], logits[0])
    return (exact[1] == -torch.inf).nonzero()[:, 0].tolist()


def test_words_of_any_slot(device: torch.device):
    """The state of a slot lies behind that of others, also its numbers."""
    words = [([], 9), ([3], 8), ([4], 7), ([3, 5], 6)]
    state = state_of(words, [5, 3], [], 0)
    assert forbidden(state, 2, device) == [6, 8, 9]
    assert forbidden(state, 1, device) == [9]  # after 5 alone
    assert forbidden(state, 0, device) == [9]  # at the beginning, nothing is before a word


def test_long_prefixes(device: torch.device):
    """All tokens of the output, and one more than there are."""
    said = [11, 12, 13, 14, 15]
    words = [(said[::-1], 20), ([*said[::-1], 1], 21), ([15, 14, 13, 12, 10], 22), ([15, 14, 13], 23)]
    assert forbidden(state_of(words, said, [], 0), 5, device) == [20, 23]


@pytest.mark.parametrize(("position", "least", "those"), [(0, 1, [30]), (4, 5, [30]), (5, 5, []), (0, 0, [])])
def test_a_stop_token_before_there_are_enough(
    position: int, least: int, those: list[int], device: torch.device
):
    """One alone; at the least number of tokens it may come."""
    assert forbidden(state_of([], [1] * 6, [30], least), position, device) == those


def test_words_and_stop_tokens(device: torch.device):
    """Together; token 0, the last of the vocabulary, and one that is in both lists."""
    state = state_of([([], 0), ([], 30)], [], [30, V - 1], 1)
    assert forbidden(state, 0, device) == [0, 30, V - 1]


def test_the_last_token_that_is_left(device: torch.device):
    """Is neither a bad word nor a stop token: a list that takes it changes nothing, the other one does."""
    most = [token for token in range(V) if token != 40]
    everything = [([], token) for token in most]
    assert forbidden(state_of(everything, [], [40], 1), 0, device) == most
    assert forbidden(state_of([([], 40)], [], [*most, 40], 1), 0, device) == [40]


def test_no_rows(device: torch.device):
    none = torch.empty(0, dtype=torch.int32, device=device)
    state = Prohibitions(*(table.to(device) for table in vars(state_of([], [], [], 0)).values()))
    forbid_tokens(torch.empty(0, V, device=device), none, none, state)
