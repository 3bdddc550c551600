"""Rows with adapters on the CUDA path, in Triton's interpreter: the same bits alone, beside others, in chunks
and in graphs, near those of the CPU's path; a row without one is not touched."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kernels.triton.matmul import ranges
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.logprob_columns import Scored
from tests.worker.adapters.test_rows import DIGESTS, adapter_of, synthetic
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import DrivenSequence, Driver, resolved_params
from worker.adapters.store import AdapterStore
from worker.layers.linear import ColumnLinear, RowLinear
from worker.step.rows import PlanError

Checkpoints = Callable[..., Path]
SHAPE = {"num_hidden_layers": 1, "max_position_embeddings": 96, "intermediate_size": 200}
SIZES = {**SMALL, "max_loras": 3}
OWNERS = (0, None, 1, 2)


@pytest.fixture
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 200 inputs have two ranges."""
    interpret(monkeypatch)
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)


@pytest.fixture
def folder(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", **SHAPE)


def loaded(folder: Path, budget: int = 64, **changes: object) -> Driver:
    """With four adapters."""
    options = {"loader": load_on_the_host, "dtype": "float32", **SIZES, **changes}
    driver = Driver(folder, budget, record=False, **options)
    for number in range(len(DIGESTS)):
        store(driver).add(synthetic(driver.runner.backend.model, number, (3, 5)))
    return driver


def store(driver: Driver) -> AdapterStore:
    adapters = driver.runner.backend.adapters
    assert adapters is not None
    return adapters.store


def add(driver: Driver, number: int, owner: int | None, start: int = 0) -> DrivenSequence:
    """Prompts of different lengths; log-probabilities show the bits."""
    prompt = [3 + (7 * number + i) % 200 for i in range(2 + 2 * number)]
    wants = LogprobOptions(top_n=3)
    return driver.add(prompt, 2, resolved_params(), wants=wants, adapter=adapter_of(owner, start))[0]


def run(driver: Driver, owners: Sequence[int | None] = OWNERS) -> list[list[Scored]]:
    sequences = [add(driver, number, owner) for number, owner in enumerate(owners)]
    driver.run()
    return [sequence.scores for sequence in sequences]


def test_the_same_bits(folder: Path, few_values: None):
    """Beside rows with other adapters and without, alone, in chunks, and in graphs; a row without one as
    where there are none."""
    together = run(loaded(folder))
    driver = loaded(folder, budget=7)
    driver.runner.backend.capture(7)
    assert run(driver) == together
    sequence = add(driver, 3, OWNERS[3])
    driver.run()
    assert sequence.scores == together[3]
    driver = Driver(folder, loader=load_on_the_host, record=False, dtype="float32", **SMALL)
    plain = add(driver, 1, None)
    driver.run()
    assert plain.scores == together[1]


def test_as_on_a_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the layers that take adapters on both."""

    def loaded_on_a_cpu() -> Driver:
        driver = Driver(folder, record=False, dtype="float32", **SMALL)
        for number in range(len(DIGESTS)):
            kinds = ColumnLinear, RowLinear
            store(driver).add(synthetic(driver.runner.backend.model, number, (3, 5), kinds))
        return driver

    expected = run(loaded_on_a_cpu())
    interpret(monkeypatch)
    for ours, theirs in zip(run(loaded(folder)), expected, strict=True):
        assert [each.ids for each in ours] == [each.ids for each in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int4-g32"])
def test_weights_of_few_bits(folder: Path, few_values: None, quantization: str):
    """What an adapter adds does not depend on how the weights are held: bits alone are those in company."""
    options = {"quantization": quantization, "dtype": "bfloat16"}
    together, driver = run(loaded(folder, **options), OWNERS[:3]), loaded(folder, **options)
    sequence = add(driver, 2, OWNERS[2])
    driver.run()
    assert sequence.scores == together[2]
    assert together[2] != run(loaded(folder, **options), [0, None, None])[2]


def test_positions_before_the_start_are_the_base_models(folder: Path, few_values: None):
    scores = []
    for budget, start in ((64, 9), (7, 9), (7, 0)):
        driver = loaded(folder, budget)
        sequence = add(driver, 4, 0, start)
        driver.run()
        scores.append(sequence.scores)
    assert scores[0] == scores[1] != scores[2]


def test_no_more_adapters_than_there_is_room_for(folder: Path, few_values: None):
    driver = loaded(folder, max_loras=1)
    for number in range(2):
        add(driver, number, number)
    with pytest.raises(PlanError, match="more than 1 adapters"):
        driver.run()


def test_none_without_the_flag(folder: Path, few_values: None):
    driver = Driver(folder, loader=load_on_the_host, **SMALL)
    assert "--lora" in driver.ready.model.adapters_caveat
    assert driver.runner.backend.adapters is None
    ready = loaded(folder).ready
    assert (ready.model.adapters_caveat, ready.model.max_adapters_per_step) == ("", 3)


def test_a_dropped_adapter_stays_for_its_rows(folder: Path, few_values: None):
    expected, driver = run(loaded(folder), [0])[0], loaded(folder)
    sequence = add(driver, 0, 0)
    driver.step()
    store(driver).drop(DIGESTS[0])
    driver.run()
    assert sequence.scores == expected
    with pytest.raises(PlanError, match="not loaded"):
        add(driver, 0, 0)
        driver.run()
