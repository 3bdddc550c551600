"""Rows with adapters on the CUDA path, in Triton's interpreter: the same bits alone, beside others, in chunks
and in graphs, near those of the CPU's path; a row without one is not touched."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.triton.matmul import ranges
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.logprob_columns import Scored, top
from tests.worker.adapters.test_rows import DIGESTS, adapter_of, synthetic
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import DrivenSequence, Driver, resolved_params
from worker.adapters.store import AdapterStore
from worker.cuda.device import Run
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


FAMILIES: dict[str, dict[str, object]] = {
    "qwen2_moe": {
        "intermediate_size": 72,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 40,
    },
    "llama4": {"head_dim": 16, "intermediate_size": 40, "intermediate_size_mlp": 72, "no_rope_layers": [1]},
    "youtu": {"intermediate_size": 72},
}
"""Experts with a router and a gate of what all tokens have; experts whose inputs are weighed; latent
attention."""


def run(driver: Driver, owners: Sequence[int | None] = OWNERS) -> list[list[Scored]]:
    sequences = [add(driver, number, owner) for number, owner in enumerate(owners)]
    driver.run()
    return [sequence.scores for sequence in sequences]


def run_on_a_cpu(folder: Path) -> list[list[Scored]]:
    driver = Driver(folder, record=False, dtype="float32", **SMALL)
    for number in range(len(DIGESTS)):
        store(driver).add(synthetic(driver.runner.backend.model, number, (3, 5)))
    return run(driver)


def assert_near(found: list[list[Scored]], expected: list[list[Scored]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [each.ids for each in ours] == [each.ids for each in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


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


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_other_kinds(family: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """As above, of every layer that takes adapters; and near those of a CPU."""
    folder = checkpoint(family, **SHAPE | FAMILIES[family])
    expected = run_on_a_cpu(folder)
    interpret(monkeypatch)
    driver = loaded(folder)
    together = run(driver)
    assert_near(together, expected)
    sequence = add(driver, 3, OWNERS[3])
    driver.run()
    assert sequence.scores == together[3]
    driver = loaded(folder, budget=7)
    driver.runner.backend.capture(7)
    assert run(driver) == together


@pytest.mark.parametrize(("part", "tied"), [("head", False), ("head", True), ("lookup", True)])
def test_heads_and_embeddings(part: str, tied: bool, checkpoint: Checkpoints, few_values: None):
    """Each by itself, also where they have one table: prompts' scores and sampled tokens, alone, beside rows
    with another adapter and without, and in chunks."""
    folder, scores = checkpoint("llama", **SHAPE, tie_word_embeddings=tied), list[object]()
    for owner, others, budget in ((0, 0, 64), (0, 2, 64), (0, 2, 5), (None, 0, 64)):
        driver = Driver(folder, budget, record=False, loader=load_on_the_host, dtype="float32", **SIZES)
        model = driver.runner.backend.model
        table = model.head if part == "head" else model.embedding
        for number in range(2):
            whole = synthetic(model, number)
            head, lookup = synthetic(model, 0).deltas[table]
            parts = (head, None) if part == "head" else (None, lookup)
            store(driver).add(replace(whole, deltas={table: parts}))
        for number in range(others):
            add(driver, number, (None, 1)[number])
        wants = {"wants": top(2), "prompt_wants": top(2), "adapter": adapter_of(owner)}
        (sequence,) = driver.add(range(3, 9), 2, resolved_params(), **wants)
        driver.run()
        scores.append((sequence.prompt_scores, sequence.scores, sequence.output))
    alone, beside, chunked, plain = scores
    assert alone == beside == chunked
    assert all(one != other for one, other in zip(alone, plain, strict=True))


def test_sampling_in_graphs(folder: Path, few_values: None):
    """Of rows whose adapters change the logits, and of rows whose adapters do not."""

    def outputs(driver: Driver) -> list[list[int]]:
        sequences = [driver.add([5 + number], 2, adapter=adapter_of(owner))[0] for number, owner in
                     enumerate(OWNERS)]  # fmt: skip
        driver.run()
        sequences += driver.add([7], 2, adapter=adapter_of(3))
        driver.run()
        return [sequence.output for sequence in sequences]

    def loaded_with_one_more() -> Driver:
        driver = loaded(folder)
        model = driver.runner.backend.model
        store(driver).drop(DIGESTS[3])
        deltas = {
            layer: parts for layer, parts in synthetic(model, 3).deltas.items() if layer is not model.head
        }
        store(driver).add(replace(synthetic(model, 3), deltas=deltas))
        return driver

    expected, driver = outputs(loaded_with_one_more()), loaded_with_one_more()
    backend = driver.runner.backend
    backend.capture(4)
    backend.capture_sampling(4)
    launched = list[bool]()
    for (_, is_adapted), graphs in backend.sampling_graphs.items():
        size, (graph,) = 4, graphs._graphs.values()

        def counted(graph: Run = graph, is_adapted: bool = is_adapted) -> torch.Tensor:
            launched.append(is_adapted)
            return graph()

        graphs.add(size, counted)
    assert outputs(driver) == expected
    assert launched == [True] * 2 + [False] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_target_modules_of_a_cpu(family: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Files of adapters find the same ones."""
    folder, found = checkpoint(family, **SHAPE | FAMILIES[family]), list[list[object]]()
    for _ in range(2):
        driver = Driver(folder, record=False, dtype="float32", **SMALL) if not found else loaded(folder)
        modules = driver.runner.backend.model.target_modules
        found.append([set(modules.targets), set(modules.embeddings), set(modules.stacked), modules.others])
        interpret(monkeypatch)
    assert found[0] == found[1]


def test_as_on_a_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch):
    expected = run_on_a_cpu(folder)
    interpret(monkeypatch)
    assert_near(run(loaded(folder)), expected)


@pytest.mark.parametrize(
    ("family", "quantization"),
    [("llama", "int8"), ("llama", "int4-g32"), ("qwen2_moe", "int8"), ("youtu", "int8")],
)
def test_weights_of_few_bits(family: str, quantization: str, checkpoint: Checkpoints, few_values: None):
    """What an adapter adds does not depend on how the weights are held: bits alone are those in company."""
    folder = checkpoint(family, **SHAPE | FAMILIES.get(family, {}))
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
