"""Keys and values of 8 bits: half the memory, and outputs that are exact in their own right."""

from pathlib import Path

import pytest
import torch

from tests.worker.fakes import DrivenSequence, Driver

pytestmark = pytest.mark.cpu_kernels

PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250] * 3
OPTIONS = {"dtype": "bfloat16", "block_size": 16, "kv_cache_dtype": "fp8_e4m3"}


def logits(sequence: DrivenSequence) -> torch.Tensor:
    return torch.stack(sequence.logits)


def difference(one: DrivenSequence, other: DrivenSequence) -> float:
    """Of their first logits, relative to these."""
    return float((one.logits[0] - other.logits[0]).norm() / other.logits[0].norm())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.checkpoints import make_checkpoint

    path = tmp_path_factory.mktemp("kv_cache_dtype")
    make_checkpoint("llama", path, head_dim=32, max_position_embeddings=256)
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> DrivenSequence:
    """The prompt in one step."""
    driver = Driver(folder, **OPTIONS)
    (sequence,) = driver.add(PROMPT, 8)
    driver.run()
    assert driver.ready.model.kv_cache_dtype == "fp8_e4m3"
    assert driver.ready.model.arithmetic.endswith("KV cache in fp8_e4m3")
    assert not driver.ready.model.exactness_caveat
    return sequence


def test_company_pieces_and_preemption(folder: Path, alone: DrivenSequence):
    """Beside other rows, in other blocks, with a prefix that another row has computed, in pieces, and begun
    again after some tokens."""
    driver = Driver(folder, budget=13, shuffle=3, **OPTIONS)
    driver.add([3, 4, 5] * 9, 12)
    (first,) = driver.add(PROMPT, 8)
    while len(first.output) < 4:
        driver.step()
    (second,) = driver.add(PROMPT, 8)
    driver.share(first, second, 1)
    driver.preempt(first)
    driver.run()
    for sequence in (first, second):
        assert sequence.output == alone.output
    assert torch.equal(logits(second), logits(alone))


def test_half_the_memory(folder: Path, alone: DrivenSequence):
    """Of bfloat16, a quarter of float32; and other logits, by a little."""
    plain = Driver(folder, **OPTIONS | {"kv_cache_dtype": ""})
    (sequence,) = plain.add(PROMPT, 1)
    plain.run()
    narrow = Driver(folder, **OPTIONS)
    assert plain.ready.num_blocks == narrow.ready.num_blocks
    assert plain.ready.kv_cache_bytes == 2 * narrow.ready.kv_cache_bytes
    assert 0 < difference(sequence, alone) < 0.2


@pytest.mark.parametrize("block_size", [16, 8])
def test_torch_gives_nearly_the_same(
    folder: Path, alone: DrivenSequence, block_size: int, monkeypatch: pytest.MonkeyPatch
):
    """Without kernels, and in blocks that no kernel of attention reads: what is rounded before it is stored
    differs in its last bits, and sometimes becomes the next number of 8 bits."""
    if block_size == 16:
        monkeypatch.setattr("worker.cpu.kernel_selection.why_not", lambda: "a test")
    driver = Driver(folder, **OPTIONS | {"block_size": block_size})
    (sequence,) = driver.add(PROMPT, 1)
    driver.run()
    assert difference(sequence, alone) < 0.2
