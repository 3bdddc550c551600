"""A row's logits and tokens on the CUDA path are the same bit for bit, whatever computes beside it, however
its prompt is cut, behind a resumption, in graphs, and with drafts. In Triton's interpreter, which adds in the
kernels' order; products are cut into ranges, and attention into chunks, of a few values each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernels.triton.matmul import ranges
from pagewire.errors import StartupError
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.logprob_columns import Scored
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import DrivenSequence, Driver, initialize, resolved_params
from worker.layers.matrix import Matrix
from worker.speculation.sources import Sources

Checkpoints = Callable[..., Path]
SHAPE = {"num_hidden_layers": 1, "max_position_embeddings": 96, "intermediate_size": 200}
PROMPT = [5, 6, 7, 8, 9, 10] * 3
OUTPUT = 4

pytestmark = pytest.mark.usefixtures("few_values")


@pytest.fixture
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranges of 200 values, and two chunks of 22 tokens."""
    interpret(monkeypatch)
    monkeypatch.setattr(ranges, "LEAST_RANGE", 64)
    for module in ("attention_sizes", "merge_chunks", "paged_attention", "latent_attention"):
        monkeypatch.setattr(f"kernels.triton.attention.{module}.CHUNK", 16)


def drive(folder: Path, **options: Any) -> Driver:
    return Driver(folder, loader=load_on_the_host, record=False, **{**SMALL, **options})


def add(driver: Driver, delivered: list[int]) -> DrivenSequence:
    """The row that is compared."""
    wants = LogprobOptions()
    return driver.add(PROMPT, OUTPUT, resolved_params(), delivered=delivered, wants=wants)[0]


Made = tuple[list[int], list[Scored]]


def made(sequence: DrivenSequence) -> Made:
    """Tokens, and log-probabilities as they are."""
    return sequence.output, sequence.scores


@pytest.fixture(scope="module")
def alone() -> list[Made]:
    """Filled by the first test that asks: fixtures of functions set what it depends on."""
    return []


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A checkpoint, written once."""
    from tests.checkpoints import make_checkpoint

    folder = tmp_path_factory.mktemp("one_arithmetic")
    make_checkpoint("llama", folder, **SHAPE)
    return lambda: folder


@pytest.fixture
def expected(few_values: None, make_folder: Callable[[], Path], alone: list[Made]) -> Made:
    """The row by itself, its prompt in one step."""
    if not alone:
        driver = drive(make_folder())
        sequence = add(driver, [])
        driver.run()
        assert len(set(sequence.output)) > 2
        alone.append(made(sequence))
    return alone[0]


def test_company_and_pieces(make_folder: Callable[[], Path], expected: Made):
    """Beside a row that decodes; in other blocks, another row, pieces of a prompt."""
    driver = drive(make_folder(), budget=7, shuffle=4)
    driver.add([3, 4, 5], 6)
    sequence = add(driver, [])
    driver.run()
    assert made(sequence) == expected


def test_resumption(make_folder: Callable[[], Path], expected: Made):
    """What was output is computed with the prompt, in one step."""
    tokens, scores = expected
    driver = drive(make_folder())
    sequence = add(driver, tokens[:2])
    driver.run()
    assert made(sequence) == (tokens, scores[2:])


def test_keys_and_values_of_8_bits(make_folder: Callable[[], Path], expected: Made):
    """Beside another row, in pieces, and resumed: what the row alone gives with such a cache."""
    narrow, crowd = (
        drive(make_folder(), kv_cache_dtype="fp8_e4m3", **options)
        for options in ({}, {"budget": 7, "shuffle": 4})
    )
    assert narrow.ready.model.kv_cache_dtype == "fp8_e4m3"
    sequence = add(narrow, [])
    narrow.run()
    tokens, scores = made(sequence)
    assert scores != expected[1]
    crowd.add([3, 4, 5], 6)
    resumed = add(crowd, tokens[:2])
    crowd.run()
    assert made(resumed) == (tokens, scores[2:])


class KnowingDrafter:
    """A worker.speculation.drafter.Drafter of what comes, but for the last token."""

    is_free = True
    computed_prompts = False

    def __init__(self, sequence: DrivenSequence, output: list[int]) -> None:
        self._sequence, self._output = sequence, output

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        done = len(self._sequence.output)
        return [[*self._output[done : done + length - 1], 7] for length in most]

    def remove_row(self, row: int) -> None:
        """Nothing is kept."""


def test_drafts(make_folder: Callable[[], Path], expected: Made):
    """Several tokens of a row in a step, one of them wrong; in graphs, which are padded."""
    driver = drive(make_folder(), room=3, speculation="lookup:tokens=3")
    for size in (6, 4):
        driver.runner.backend.capture(size)  # type: ignore[attr-defined]
    sequence = add(driver, [])
    sources = Sources([(1, KnowingDrafter(sequence, expected[0]))], 3)
    sources._sources[0].lengths.length = lambda row, num_tokens: 3  # type: ignore[method-assign]
    driver.runner._speculator._sources = sources  # type: ignore[attr-defined]
    driver.run()
    assert made(sequence) == expected
    assert driver.num_drafted > driver.num_accepted > 0


def test_experts_and_latents(checkpoint: Checkpoints):
    """Beside other rows, in pieces, and resumed: what the row alone gives. Products of 200 values have two
    ranges."""
    shape = SHAPE | {"moe_intermediate_size": 200, "first_k_dense_replace": 0}
    folder = checkpoint("deepseek_v3", **shape)
    single, crowd = drive(folder), drive(folder, budget=7, shuffle=4)
    sequence = add(single, [])
    single.run()
    tokens, scores = made(sequence)
    crowd.add([3, 4, 5], 6)
    rest, resumed = add(crowd, []), add(crowd, tokens[:2])
    crowd.run()
    assert made(rest) == (tokens, scores)
    assert made(resumed) == (tokens, scores[2:])


STATES: dict[str, dict[str, Any]] = {
    "qwen3_5": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "falcon_h1": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("family", STATES)
def test_states_of_rows(family: str, checkpoint: Checkpoints):
    """Beside other rows, in pieces, in graphs, which are padded, and resumed: what the row alone gives."""
    folder = checkpoint(family, max_position_embeddings=96, **STATES[family])
    single, crowd = drive(folder), drive(folder, budget=7, shuffle=4)
    sequence = add(single, [])
    single.run()
    tokens, scores = made(sequence)
    crowd.runner.backend.capture(4)  # type: ignore[attr-defined]
    crowd.add([3, 4, 5], 3)
    resumed = add(crowd, tokens[:1])
    crowd.run()
    assert made(resumed) == (tokens, scores[1:])


def test_the_library_promises_nothing(make_folder: Callable[[], Path]):
    """With --fast-matmul drafts are refused, in words that name it."""
    command = initialize(make_folder(), **SMALL, fast_matmul=True, speculation="lookup")
    with pytest.raises(StartupError, match="the matrix library of --fast-matmul chooses"):
        load_on_the_host(command)
    driver = drive(make_folder(), fast_matmul=True)
    layers = driver.runner.backend.model.modules()  # type: ignore[attr-defined]
    assert {layer.ops.by_library for layer in layers if isinstance(layer, Matrix)} == {True}
