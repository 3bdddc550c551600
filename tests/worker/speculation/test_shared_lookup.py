"""Earlier outputs of a tenant: looked up by its rows and no other's, within bounded memory."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.internal.v1 import worker_pb2
from tests.worker.fakes import Driver, resolved_params
from worker.speculation.lookup import MAX_TENANTS, SharedLookupDrafter, SharedTexts
from worker.step.rows import RowTable

SIZES = {"dtype": "bfloat16", "block_size": 16, "num_blocks": 64, "max_num_seqs": 4, "record": False}


@pytest.fixture
def rows() -> RowTable:
    return RowTable(4, 100, 1000, 4, 10)


def run_row(drafter: SharedLookupDrafter, rows: RowTable, tenant: str, text: list[int]) -> None:
    """Row 0 begins with a prompt of 2 tokens, makes an output, and ends."""
    begin(drafter, rows, 0, tenant, [7, 7, *text])
    rows.num_tokens[0] = 0  # as RowTable.remove() does before features are told
    drafter.remove_row(0)


def begin(drafter: SharedLookupDrafter, rows: RowTable, row: int, tenant: str, tokens: list[int]) -> None:
    rows.token_ids[row, : len(tokens)] = tokens
    rows.num_tokens[row], rows.prompt_lens[row] = len(tokens), 2
    rows.num_computed[row] = len(tokens) - 1  # the last token was sampled, and is not computed
    drafter.add_row(row, worker_pb2.NewRow(row=row, tenant=tenant), [], [])


def test_rows_of_the_tenant_look_up_and_no_others(rows: RowTable) -> None:
    drafter = SharedLookupDrafter(rows, 100)
    run_row(drafter, rows, "a", [1, 2, 3, 4, 5, 6])
    for row, tenant, expected in ((1, "a", [5, 6]), (2, "b", []), (3, "", [])):
        begin(drafter, rows, row, tenant, [9, 1, 2, 3, 4])
        assert drafter.draft([row], [5]) == [expected]
    drafter.fork_row(0, 1, 1)
    begin(drafter, rows, 0, "a", [9, 9, 2, 3, 4])
    assert drafter.draft([0], [5]) == [[]], "prompts are not kept, and runs have four tokens"
    drafter.remove_row(0)
    drafter.remove_row(0)


def test_the_tenant_that_was_idle_for_longest_goes(rows: RowTable) -> None:
    drafter = SharedLookupDrafter(rows, 100)
    for number in range(MAX_TENANTS + 1):
        run_row(drafter, rows, f"t{number}", [1, 2, 3, 4, 5])
    for tenant, expected in (("t0", []), ("t1", [5]), (f"t{MAX_TENANTS}", [5])):
        begin(drafter, rows, 1, tenant, [9, 1, 2, 3, 4])
        assert drafter.draft([1], [5]) == [expected]


def test_memory_is_bounded_and_the_latest_is_kept() -> None:
    texts, draw = SharedTexts(100), random.Random(5)
    for number in range(200):
        output = [1000 * number + place for place in range(draw.randrange(2, 90))]
        texts.add(output)
        assert texts.num_tokens <= 100
        if len(output) > 5:
            kept = output[-50:]
            assert texts.follow(tuple(kept[:4]), 9) == kept[4:13]
    assert texts.follow((0, 1, 2, 3), 9) == []


def test_a_run_across_two_outputs_is_none() -> None:
    texts = SharedTexts(100)
    texts.add([1, 2, 3, 4])
    texts.add([5, 6, 7, 8, 9])
    assert texts.follow((3, 4, 5, 6), 2) == [] and texts.follow((1, 2, 3, 4), 2) == []
    assert texts.follow((5, 6, 7, 8), 2) == [9]


@pytest.mark.cpu_kernels
def test_the_second_request_is_the_first_in_fewer_steps(checkpoint: Callable[..., Path]) -> None:
    driver = Driver(
        checkpoint("llama", head_dim=32), room=6, speculation="lookup:tokens=6,shared=500", **SIZES
    )  # type: ignore[arg-type]
    steps, outputs = [], []
    for _ in range(2):
        before = driver.steps
        (sequence,) = driver.add(range(3, 20), 40, resolved_params(temperature=1, seed=3))
        driver.run()
        steps.append(driver.steps - before)
        outputs.append(sequence.output)
    assert outputs[0] == outputs[1] and steps[1] < 0.6 * steps[0]
