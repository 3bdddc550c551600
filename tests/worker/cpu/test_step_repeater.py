"""Steps that repeat the one before are one call: the same tokens, rows and cache as those of steps that are
launched, which every plan is that does anything else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
import torch

from kernels.cpu.step.inputs import CONTEXT_STEP
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from tests.worker.fakes import Driver, resolved_params
from worker.cpu.backend import CpuBackend
from worker.executor.backend import LaunchClock, SampledTokens
from worker.step.rows import PlanError, RowTable

pytestmark = pytest.mark.cpu_kernels

Checkpoints = Callable[..., Path]
GREEDY, DRAWN = resolved_params(), resolved_params(temperature=1, seed=3)
TOP_K = resolved_params(temperature=0.5, top_k=3, seed=4)
BLOCK_SIZE, NO_TOKEN_COLUMN = 16, 0xFFFFFFFF


class Watched(Driver):
    """Counts repeated steps. repeats: whether any step is."""

    def __init__(self, folder: Path, repeats: bool = True, **changes: object) -> None:
        limits = {"dtype": "bfloat16", "block_size": BLOCK_SIZE, "num_blocks": 300, "max_num_seqs": 8}
        super().__init__(folder, record=False, **{**limits, **changes})
        self.backend: CpuBackend = self.runner.backend  # type: ignore[attr-defined]
        self.repeated = 0
        repeat = self.backend.repeat

        def watched(plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
            found = repeat(plan, clock) if repeats else None
            self.repeated += found is not None
            return found

        self.backend.repeat = watched  # type: ignore[method-assign]

        for left_by_warm_up in self._arrays:
            left_by_warm_up[...] = 0

    @property
    def _arrays(self) -> list[npt.NDArray[Any]]:
        """All that a step changes: the row table, what the sampler counts, the cache."""
        rows: RowTable = self.runner.rows  # type: ignore[attr-defined]
        tables = [rows.token_ids, rows.blocks, rows.num_tokens, rows.num_blocks, rows.num_computed]
        cache = [pool.view(torch.uint8).numpy() for pool in self.backend.cache.pools]
        return [*tables, self.backend.sampler.columns["position"], *cache]

    @property
    def state(self) -> list[bytes]:
        """The bits of all that a step changes."""
        return [array.tobytes() for array in self._arrays]


@pytest.fixture
def folder(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True)


def outputs(driver: Watched, rows: list[tuple[int, int]]) -> list[list[int]]:
    """Of greedy rows with so many tokens of prompt, and so many to be made, which begin together."""
    sequences = [
        driver.add([3 + (7 * number + i) % 200 for i in range(length)], most)[0]
        for number, (length, most) in enumerate(rows)
    ]
    driver.run()
    return [sequence.output for sequence in sequences]


CASES = {
    "one row": ([(5, 40)], 38),
    "rows that end one after the other": ([(5, 9), (7, 19), (4, 29)], 7 + 9 + 9),
    "a row whose attention becomes another": ([(CONTEXT_STEP - 6, 12)], 9),
    "a row that is split": ([(510, 14), (20, 14)], 11),
}


@pytest.mark.parametrize("quantization", ["", "int4"])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_steps_that_are_launched(folder: Path, case: str, quantization: str) -> None:
    rows, repeated = CASES[case]
    driver = Watched(folder, quantization=quantization)
    reference = Watched(folder, repeats=False, quantization=quantization)
    assert outputs(driver, rows) == outputs(reference, rows)
    assert driver.state == reference.state
    assert (driver.repeated, reference.repeated) == (repeated, 0)


def test_rows_with_a_common_prefix(checkpoint: Checkpoints) -> None:
    """They are paired as in steps that are launched, by lengths that change with each step."""
    folder = checkpoint(
        "llama", num_attention_heads=6, num_key_value_heads=2, head_dim=64, tie_word_embeddings=True
    )
    drivers = [Watched(folder, repeats=repeats) for repeats in (True, False)]
    for driver in drivers:
        first = driver.add([3 + i % 50 for i in range(40)], 20)[0]
        driver.step()
        for number in range(5):
            other = driver.add([*first.tokens[:32], 60 + number], 12)[0]
            driver.share(first, other, 2)
        driver.run()
    assert drivers[0].state == drivers[1].state
    assert drivers[0].repeated > 10


def test_rows_that_are_not_greedy(folder: Path) -> None:
    """They are repeated up to their logits, as long as their number stays; the sampler goes on as in steps
    that are launched, with its processors."""
    found = []
    for repeats in (True, False):
        driver = Watched(folder, repeats)
        wanted = [(GREEDY, 20), (DRAWN, 8), (resolved_params(repetition_penalty=1.7), 15), (TOP_K, 12)]
        sequences = [
            driver.add([3 + number, 4, 5], most, params)[0] for number, (params, most) in enumerate(wanted)
        ]
        driver.run()
        found.append(([sequence.output for sequence in sequences], driver.state))
        assert driver.repeated == repeats * (6 + 3 + 2 + 4)
    assert found[0] == found[1]


def test_tokens_that_are_left_to_torch(folder: Path) -> None:
    """A row with a filter that is not compiled is repeated up to its logits, and so are its batch mates."""
    found = []
    for repeats in (True, False):
        driver = Watched(folder, repeats)
        wanted = [(GREEDY, 9), (resolved_params(temperature=1, typical_p=0.6), 6), (DRAWN, 9)]
        sequences = [driver.add([3 + row, 4], most, params)[0] for row, (params, most) in enumerate(wanted)]
        driver.run()
        found.append(([sequence.output for sequence in sequences], driver.state))
        assert driver.repeated == repeats * (4 + 2)
    assert found[0] == found[1]


def test_a_row_with_a_grammar(folder: Path) -> None:
    """What its matcher says of a step is asked for where steps are launched."""
    driver = Watched(folder)
    sequence = driver.add([3, 4, 5], 6)[0]
    driver.step()
    driver.step()
    users = driver.backend.grammars.users
    driver.backend.grammars.users = lambda rows: [0]  # type: ignore[method-assign]
    driver.backend.sampler.needs_logits = lambda rows, drafted: True  # type: ignore[method-assign]
    driver.runner.execute(worker_pb2.StepPlan(step=77))
    while not sequence.done:
        driver.step()
    assert driver.repeated == 0 and not users([sequence.row])


def test_a_row_that_wants_log_probabilities(folder: Path) -> None:
    driver = Watched(folder)
    sequence = driver.add([3, 4, 5], 6, wants=generation_pb2.LogprobOptions(top_n=2))[0]
    driver.run()
    assert len(sequence.scores) == 6 and driver.repeated == 0


def test_another_row_of_the_same_number(folder: Path) -> None:
    """A row ends, and one with other parameters begins under its number, where the last one would go on."""
    found = []
    for repeats in (True, False):
        driver = Watched(folder, repeats, max_num_seqs=1)
        driver.add([3, 4, 5], 4)
        driver.run()
        drawn = driver.add([3, 4, 5, 6, 7, 8], 5, DRAWN)[0]
        driver.run()
        found.append((drawn.output, driver.state))
    assert found[0] == found[1]


def test_a_model_that_breaks(folder: Path) -> None:
    """NaN in a repeated step: there is no token, and the row has a 0 in its place."""
    driver = Watched(folder)
    sequence = driver.add([3, 4], 8)[0]
    for _ in range(3):
        driver.step()
    driver.backend.model.model.norm.weight.fill_(torch.nan)  # type: ignore[union-attr]
    driver.step()
    assert driver.repeated == 2 and sequence.output[-1] == NO_TOKEN_COLUMN
    assert driver.runner.rows.token_ids[sequence.row, 5] == 0  # type: ignore[attr-defined]


def continued(driver: Watched, row: int, start: int) -> worker_pb2.StepPlan:
    """A plan that repeats the last one of a single row."""
    columns = {"rows": row, "starts": start, "counts": 1, "sample_rows": row, "sample_sources": 0}
    return worker_pb2.StepPlan(step=99, **{name: pack_u32([value]) for name, value in columns.items()})


def test_plans_that_do_not_fit(folder: Path) -> None:
    """They are refused as others are, and nothing has changed."""
    driver = Watched(folder)
    sequence = driver.add([3 + i for i in range(BLOCK_SIZE - 3)], 9)[0]
    for _ in range(4):  # the block is full
        driver.step()
    assert driver.repeated == 2
    before = driver.state
    for start, why in ((BLOCK_SIZE, "beyond its blocks"), (BLOCK_SIZE + 1, "tokens that it does not have")):
        with pytest.raises(PlanError, match=why):
            driver.runner.execute(continued(driver, sequence.row, start))
    assert driver.state == before and driver.repeated == 2


def test_a_plan_that_does_more(folder: Path) -> None:
    """A row that ends beside them: the plan is launched."""
    driver = Watched(folder)
    sequence = driver.add([3, 4, 5], 9)[0]
    other = driver.add([6, 7, 8], 9)[0]
    driver.step()
    driver.remove(other)
    for _ in range(3):
        driver.step()
    assert driver.repeated == 2
    plan = continued(driver, sequence.row, len(sequence.tokens) - 1)
    plan.removed_rows = pack_u32([sequence.row])
    with pytest.raises(PlanError):  # ended rows compute nothing
        driver.runner.execute(plan)
    assert driver.repeated == 2
