"""Limits of processors by compute capability, and which one launchers choose sizes for."""

import pytest
import torch

from kernels.triton.capabilities import CAPABILITIES, DEFAULT, Capability, assume, capability_of, limits_of

KIB = 1 << 10


@pytest.mark.parametrize(
    ("capability", "number"),
    [
        ((8, 0), 80),
        ((8, 6), 86),
        ((8, 7), 86),
        ((8, 9), 89),
        ((9, 0), 90),
        ((10, 0), 100),
        ((10, 3), 100),
        ((12, 0), 120),
        ((12, 1), 120),
        ((7, 5), 80),
        ((13, 0), 120),
    ],
)
def test_a_device_has_its_own_limits_or_those_of_the_next_lower_one(capability: tuple[int, int], number: int):
    """Below the first that is listed, the first."""
    assert limits_of(capability) is CAPABILITIES[number]
    assert str(limits_of(capability)) == f"sm_{number}"


def test_the_table_is_that_of_nvidias_guide():
    """KiB of shared memory per program and per processor, warps and programs per processor."""
    table = {
        80: (163, 164, 64, 32),
        86: (99, 100, 48, 16),
        89: (99, 100, 48, 24),
        90: (227, 228, 64, 32),
        100: (227, 228, 64, 32),
        120: (99, 100, 48, 24),
    }
    found = {
        number: (one.shared_limit // KIB, one.shared // KIB, one.warps, one.programs)
        for number, one in CAPABILITIES.items()
    }
    assert found == table and all(one.number == number for number, one in CAPABILITIES.items())


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs"),
    [
        (32, 0, 1, 32),  # as many programs as a processor takes
        (32, 0, 4, 16),  # warps
        (32, 0, 8, 8),
        (64, 0, 8, 4),  # registers
        (65, 0, 8, 3),  # of which a thread has a multiple of eight: 72
        (72, 0, 8, 3),
        (73, 0, 8, 3),  # 80
        (81, 0, 8, 2),  # 88
        (255, 0, 8, 1),
        (32, 227 * KIB, 4, 1),  # shared memory, of which each program has one KiB more
        (32, 113 * KIB, 4, 2),
        (32, 114 * KIB, 4, 1),
        (32, 75 * KIB, 4, 3),
        (255, 0, 16, 0),  # does not fit at all
    ],
)
def test_how_many_programs_fit(registers: int, shared: int, warps: int, programs: int):
    """On a processor of 9.0: 65,536 registers, 228 KiB, 64 warps, 32 programs."""
    assert CAPABILITIES[90].resident(registers, shared, warps) == programs


def test_fewer_programs_fit_where_a_processor_has_less():
    assert [CAPABILITIES[number].resident(32, 24 * KIB, 4) for number in (80, 86, 89)] == [6, 4, 4]
    assert [CAPABILITIES[number].resident(16, 0, 1) for number in (80, 86, 89)] == [32, 16, 24]


def test_what_is_assumed_where_there_is_no_device():
    """On the host and on the meta device, within the context alone: also within another one, and where its
    body fails."""
    host, meta = torch.device("cpu"), torch.device("meta")
    before = capability_of(host)
    assert capability_of(meta) is before
    with assume(80) as outer:
        assert outer is capability_of(host) is CAPABILITIES[80]
        with assume(120):
            assert capability_of(meta).number == 120
        assert capability_of(meta).number == 80
    with pytest.raises(ValueError, match="planted"), assume(86):
        raise ValueError("planted")
    assert capability_of(host) is before


def test_without_anything_said_it_is_a_hopper():
    with assume(DEFAULT) as capability:
        assert capability.number == 90


def test_a_capability_that_is_not_listed_is_not_assumed():
    before = capability_of(torch.device("cpu"))
    with pytest.raises(KeyError), assume(70):
        pass
    assert capability_of(torch.device("cpu")) is before


def test_a_cuda_device_is_asked(monkeypatch: pytest.MonkeyPatch):
    """Whatever is assumed elsewhere; once for each device."""
    asked = []

    def capability(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return (8, 6) if device.index == 61 else (9, 0)

    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    first, second = torch.device("cuda:61"), torch.device("cuda:62")
    with assume(120):
        found = [capability_of(device).number for device in (first, second, first, first)]
    assert found == [86, 90, 86, 86] and asked == [first, second]


def test_limits_are_values():
    """Launchers keep what they have chosen by them."""
    one = Capability(90, 227 * KIB, 228 * KIB, 64, 32)
    assert one == CAPABILITIES[90] and hash(one) == hash(CAPABILITIES[90])
