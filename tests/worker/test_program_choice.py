"""Steps choose their tokens in the model's program: the same as the sampler, which goes on choosing where
something changes a row's logits before."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.v1 import generation_pb2
from tests.logprob_columns import Scored
from tests.worker.fakes import Driver, resolved_params
from worker.cpu.fused_decoder.decoder import FusedDecoder

pytestmark = pytest.mark.cpu_kernels

Checkpoints = Callable[..., Path]
GREEDY, DRAWN = resolved_params(), resolved_params(temperature=1, seed=3)
PENALIZED = resolved_params(repetition_penalty=1.7)
TOP_K, TYPICAL = resolved_params(top_k=3, temperature=0.5), resolved_params(temperature=1, typical_p=0.6)
NO_TOKEN_COLUMN = 0xFFFFFFFF


class Counted(Driver):
    """Records the number of rows of each call of the sampler."""

    def __init__(self, folder: Path, **changes: object) -> None:
        super().__init__(
            folder,
            **{"record": False, "dtype": "bfloat16", "block_size": 16, "num_blocks": 300, "max_num_seqs": 8}
            | changes,
        )
        sampler = self.runner.backend.sampler
        sample, self.asked = sampler.sample, list[int]()

        def watched(logits: torch.Tensor, rows: list[int], scores: object = None) -> torch.Tensor:
            self.asked.append(len(rows))
            return sample(logits, rows, scores)  # type: ignore[arg-type]

        sampler.sample = watched  # type: ignore[method-assign, assignment]


@pytest.fixture
def folder(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", head_dim=32, max_position_embeddings=256)


def outputs(driver: Counted, rows: list[tuple[generation_pb2.SamplingParams, int]]) -> list[list[int]]:
    """Of rows with these parameters and so many tokens, which all begin in one step."""
    sequences = [
        driver.add([3 + (7 * number + i) % 200 for i in range(4 + number)], most, params)[0]
        for number, (params, most) in enumerate(rows)
    ]
    driver.run()
    return [sequence.output for sequence in sequences]


def no_program_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference."""
    monkeypatch.setattr(FusedDecoder, "chosen_tokens", lambda model, hidden: None)


@pytest.mark.parametrize("quantization", ["", "int8"])
@pytest.mark.parametrize("rows", [1, 2, 70])
def test_greedy_rows(folder: Path, rows: int, quantization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler is never asked; rows end one after the other."""
    wanted = [(GREEDY, 4 + number % 12) for number in range(rows)]
    driver = Counted(folder, quantization=quantization, max_num_seqs=rows)
    tokens = outputs(driver, wanted)
    assert driver.asked == []
    no_program_chooses(monkeypatch)
    reference = Counted(folder, quantization=quantization, max_num_seqs=rows)
    assert outputs(reference, wanted) == tokens
    assert sum(reference.asked) == sum(most for _, most in wanted)


@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("other", [DRAWN, PENALIZED, TOP_K, TYPICAL])
def test_beside_other_rows(
    folder: Path, other: generation_pb2.SamplingParams, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler chooses for all as long as one row is penalized, and no longer. What the program leaves to
    torch is chosen by it."""
    wanted = [(other if row % 3 == 1 else GREEDY, 5 if row % 3 == 1 else 9) for row in range(rows)]
    driver = Counted(folder, max_num_seqs=rows)
    tokens = outputs(driver, wanted)
    assert driver.asked == ([rows] * 5 if other is PENALIZED else [])
    no_program_chooses(monkeypatch)
    assert outputs(Counted(folder, max_num_seqs=rows), wanted) == tokens


def test_rows_of_another_kind_in_a_step_of_one_shape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row ends, and another one begins with a single token: the inputs keep their shape."""

    def tokens(driver: Counted) -> list[list[int]]:
        sequences = []
        for params in (GREEDY, DRAWN, GREEDY, PENALIZED, GREEDY):
            sequences.append(driver.add([11 + len(sequences)], 3, params)[0])
            driver.run()
        return [sequence.output for sequence in sequences]

    driver = Counted(folder)
    expected = tokens(driver)
    assert driver.asked == [1] * 3, "of the row that is penalized"
    no_program_chooses(monkeypatch)
    assert tokens(Counted(folder)) == expected


def test_log_probabilities(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a greedy row beside another: from the logits, by the sampler."""
    options = generation_pb2.LogprobOptions(top_n=2)

    def scores(driver: Counted) -> tuple[list[int], list[int], list[Scored]]:
        plain = driver.add([3, 4, 5], 8)[0]
        scored = driver.add([6, 7], 5, wants=options)[0]
        driver.run()
        return plain.output, scored.output, scored.scores

    driver = Counted(folder)
    expected = scores(driver)
    assert len(expected[2]) == 5 and driver.asked == [2] * 5
    no_program_chooses(monkeypatch)
    assert scores(Counted(folder)) == expected


def test_positions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler counts the tokens of each row, no matter which kernel chose them."""

    def positions(driver: Counted) -> list[int]:
        driver.add([3, 4, 5], 6)
        driver.add([8, 9], 8)
        for _ in range(4):
            driver.step()
        return driver.runner.backend.sampler.columns.positions.tolist()

    chosen = positions(Counted(folder))
    assert sorted(chosen)[-2:] == [4, 4]
    no_program_chooses(monkeypatch)
    assert positions(Counted(folder)) == chosen


def test_a_model_that_breaks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN: no token, no matter which kernel chooses."""

    def tokens(driver: Counted) -> list[list[int]]:
        sequences = [driver.add([3, 4, number], 4)[0] for number in range(3)]
        driver.step()
        driver.runner.backend.model.model.norm.weight.fill_(torch.nan)
        driver.step()
        return [sequence.output for sequence in sequences]

    driver = Counted(folder)
    broken = tokens(driver)
    assert [output[-1] for output in broken] == [NO_TOKEN_COLUMN] * 3 and driver.asked == []
    no_program_chooses(monkeypatch)
    assert tokens(Counted(folder)) == broken


def test_sequences_of_one_prompt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first tokens come of the same logits, each by its own random numbers: the sampler draws them."""
    prompt = [3, 9, 27, 81, 40]

    def siblings() -> list[list[int]]:
        driver = Counted(folder)
        sequences = driver.add(prompt, 6, resolved_params(temperature=1.5, seed=7, n=3), n=3)
        greedy = driver.add(prompt[:3], 6)
        driver.run()
        asked.append(driver.asked)
        return [sequence.output for sequence in (*sequences, *greedy)]

    asked: list[list[int]] = []
    tokens = siblings()
    assert len({output[0] for output in tokens[:3]}) > 1 and sum(asked[0]) < 24
    no_program_chooses(monkeypatch)
    assert siblings() == tokens and sum(asked[1]) == 24
