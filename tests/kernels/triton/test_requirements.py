"""What kernels need of a device, and small numbers that sizes are made of."""

import pytest
import torch

from kernels.triton import requirements
from kernels.triton.requirements import (
    DEFAULT_PROCESSORS,
    LARGEST_HEAD,
    LARGEST_QUANTIZED_HEAD,
    next_power_of_2,
    num_processors,
    uses_triton,
    why_not,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("n", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (127, 128), (128, 128), (129, 256)]
)
def test_the_next_power_of_two(n: int, power: int):
    assert next_power_of_2(n) == power


def test_powers_of_two_are_the_least_ones():
    for n in range(1, 3000):
        power = next_power_of_2(n)
        assert power >= n and power & (power - 1) == 0 and (power == 1 or power // 2 < n)


def test_processors_where_there_is_no_device_are_those_of_a_hopper():
    assert num_processors(CPU) == num_processors(torch.device("meta")) == DEFAULT_PROCESSORS == 132


def test_a_cuda_device_says_how_many_processors_it_has(monkeypatch: pytest.MonkeyPatch):
    class Properties:
        multi_processor_count = 78

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert num_processors(torch.device("cuda:71")) == 78


def test_tensors_in_main_memory_are_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    """Unless this process interprets."""
    x = torch.zeros(1)
    monkeypatch.setattr(requirements, "INTERPRETED", False)
    assert not uses_triton(x)
    monkeypatch.setattr(requirements, "INTERPRETED", True)
    assert uses_triton(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_largest_head_sizes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """Those that are named fit, and one more does not; with a cache of 8 bits fewer do."""
    monkeypatch.setattr(requirements, "INTERPRETED", True)
    quantized = torch.float8_e4m3fn
    for most, cache in ((LARGEST_HEAD, None), (LARGEST_HEAD, dtype), (LARGEST_QUANTIZED_HEAD, quantized)):
        assert why_not(CPU, dtype, most, cache) is None
        refusal = why_not(CPU, dtype, most + 1, cache)
        assert refusal is not None and f"the head size is {most + 1}; up to {most} is" in refusal


def test_a_cache_has_the_models_dtype_or_8_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requirements, "INTERPRETED", True)
    refusal = why_not(CPU, torch.float16, 64, torch.bfloat16)
    assert refusal == "the KV cache is torch.float16 or float8_e4m3fn, not torch.bfloat16"
    assert (
        why_not(CPU, torch.float64, 64) == "they are for float32, float16 and bfloat16, not for torch.float64"
    )


@pytest.mark.parametrize(
    ("capability", "plain", "quantized"),
    [((7, 5), False, False), ((8, 0), True, False), ((8, 6), True, False), ((8, 9), True, True),
     ((9, 0), True, True), ((10, 0), True, True), ((12, 0), True, True)],
)  # fmt: skip
def test_devices_by_their_capability(
    capability: tuple[int, int], plain: bool, quantized: bool, monkeypatch: pytest.MonkeyPatch
):
    """8.0 is the first one, and 8.9 the first with a cache of 8 bits."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    cuda = torch.device("cuda")
    assert (why_not(cuda, torch.bfloat16, 128) is None) == plain
    refusal = why_not(cuda, torch.bfloat16, 128, torch.float8_e4m3fn)
    assert (refusal is None) == quantized
    if refusal is not None:
        assert refusal.startswith(f"a card has compute capability {capability[0]}.{capability[1]};")
