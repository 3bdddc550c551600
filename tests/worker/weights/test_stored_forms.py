"""Groups of a checkpoint in the form of the kernels: the same values, or a reason."""

import pytest
import torch

from kernels.cpu.matmul.groups.weight import GroupedWords
from worker.weights.source import GroupedIntegers, GroupedRows
from worker.weights.stored_forms import HeldForm, group_form

ROWS = 53


def stored(group: list[int], bits: int = 4, kind: str = "F16") -> GroupedIntegers:
    """Random integers, with the groups of inputs."""
    generator = torch.Generator().manual_seed(len(group))
    groups = max(group) + 1
    integers = torch.randint(1 << bits, (ROWS, len(group)), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(17, (ROWS, groups), generator=generator)
    scales = torch.randn(ROWS, groups, generator=generator).half()

    def read(first: int, end: int) -> GroupedRows:
        return GroupedRows(integers[first:end], zeros[first:end], scales[first:end])

    return GroupedIntegers(bits, torch.tensor(group), groups, kind, read)


def runs(*sizes: int) -> list[int]:
    return [number for number, size in enumerate(sizes) for _ in range(size)]


def shuffled(group: list[int]) -> list[int]:
    order = torch.randperm(len(group), generator=torch.Generator().manual_seed(3)).tolist()
    return [group[i] for i in order]


CASES = {
    "as it is": (runs(32, 32), 32, 2),
    "the last one is short": (runs(64, 64, 10), 64, 3),
    "the last one is long": (runs(32, 80), 32, 4),
    "larger than a group may be": (runs(256, 256), 128, 4),
    "one scale per output": (runs(576), 96, 6),
    "one scale, of any width": (runs(100), 128, 1),
    "several sizes": (runs(96, 48, 48), 48, 4),
    "act-order": (shuffled(runs(32, 32, 32)), 32, 3),
    "act-order, larger groups, the last one short": (shuffled(runs(192, 192, 50)), 96, 5),
    "a group without inputs": (shuffled([0] * 32 + [2] * 32), 32, 2),
}


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("name", CASES)
def test_the_same_values(name: str) -> None:
    """Whatever rows are put at once, and wherever."""
    group, size, groups = CASES[name]
    source = stored(group)
    form = group_form(source)
    assert isinstance(form, HeldForm) and form.read is not None
    assert (form.group_size, form.groups, form.order is None) == (size, groups, sorted(group) == group)
    words = GroupedWords.empty((ROWS + 3, len(group)), size, groups, form.order)
    for first, end in ((0, 5), (5, 50), (50, ROWS)):
        words.put(torch.arange(first, end) + 2, *form.read(first, end))
    values = words.pack(None).values()
    assert torch.equal(values[2:-1], source.unpack(0, ROWS))
    assert not values[:2].any() and not values[-1].any()


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("group", "inputs"),
    [
        (runs(32, 32, 32, 32), (64, 128)),
        (runs(64, 64, 10), (64, 138)),
        (runs(256, 256), (128, 256)),
        (runs(96), (48, 96)),
    ],
    ids=["two groups", "the last one is short", "a part of a divided group", "one scale per output"],
)
def test_the_values_of_some_inputs(group: list[int], inputs: tuple[int, int]) -> None:
    """As a rank holds them."""
    source = stored(group)
    whole = group_form(source)
    assert isinstance(whole, HeldForm)
    form = whole.of_inputs(*inputs, len(group))
    assert isinstance(form, HeldForm) and form.read is not None
    words = GroupedWords.empty((ROWS, inputs[1] - inputs[0]), form.group_size, form.groups, None)
    words.put(torch.arange(ROWS), *form.read(0, ROWS))
    assert torch.equal(words.pack(None).values(), source.unpack(0, ROWS)[:, slice(*inputs)])


@pytest.mark.parametrize(
    ("group", "inputs", "why"),
    [
        (runs(32, 32, 32), (0, 48), "groups of 32 inputs, of which a rank would have a part"),
        (runs(100), (50, 100), "groups of 128 inputs, of which a rank would have a part"),
        (
            shuffled(runs(32, 32)),
            (0, 32),
            "groups of inputs that are no neighbours",
        ),
    ],
)
def test_why_some_inputs_have_no_form(group: list[int], inputs: tuple[int, int], why: str) -> None:
    form = group_form(stored(group))
    assert isinstance(form, HeldForm) and why in str(form.of_inputs(*inputs, len(group)))
    assert form.of_inputs(0, len(group), len(group)) is form


def test_the_same_inputs() -> None:
    """Parts of a merged matrix need groups of the same inputs in the same order."""
    kinds = [runs(32, 32), shuffled(runs(32, 32)), runs(64), shuffled(runs(32, 32))[::-1], runs(32, 32, 32)]
    forms = [group_form(stored(group)) for group in kinds]
    for first, one in enumerate(forms):
        for second, other in enumerate(forms):
            assert isinstance(one, HeldForm) and isinstance(other, HeldForm)
            assert one.has_inputs_of(other) == (first == second)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (stored(runs(32), bits=8), "integers of 8 bits"),
        (stored(runs(32), kind="F32"), "scales in F32"),
        (stored(runs(32, 24, 32)), "a group of 24 inputs, no multiple of 16"),
        (stored(runs(8, 8)), "a group of 8 inputs"),
    ],
    ids=["bits", "scales", "odd", "small"],
)
def test_what_the_form_cannot_hold(source: GroupedIntegers, why: str) -> None:
    found = group_form(source)
    assert isinstance(found, str) and why in found
