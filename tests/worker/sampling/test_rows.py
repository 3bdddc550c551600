"""Parameters and positions by row, as the kernels of all devices read them."""

import pytest
import torch

from kernels.ops.sampling.columns import NEUTRAL
from tests.worker.sampling_reference import Case
from worker.sampling.sampler import Sampler

V = 40


def rows_of(*cases: Case) -> Sampler:
    rows = Sampler(4, V, torch.device("cpu"))
    for row, case in enumerate(cases):
        rows.add_row(row, case.new_row(row), case.prompt, case.output)
    return rows


def test_absent_parameters_are_neutral():
    rows = rows_of(Case({"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.5}, [1], [2]))
    case = Case({}, [1], [2, 3])
    rows.add_row(0, case.new_row(0), case.prompt, case.output)
    assert {name: rows.columns[name][0] for name in NEUTRAL} == NEUTRAL
    assert rows.columns.positions[0] == rows.columns["position"][0] == 2


@pytest.mark.parametrize(("top_k", "kept"), [(0, 0), (V - 1, V - 1), (V, 0), (2**32 - 1, 0)])
def test_top_k_of_all_tokens_is_none(top_k: int, kept: int):
    assert rows_of(Case({"top_k": top_k}, [1], [])).columns["top_k"][0] == kept


def test_a_seed_has_all_its_bits():
    assert rows_of(Case({"seed": 2**64 - 2}, [1], [])).columns["seed"][0] == 2**64 - 2


@pytest.mark.parametrize(
    "sampling",
    [{"allowed_token_ids": [3]}, {"logit_bias": {3: 1.0}}, {"presence_penalty": 1.0}, {"bad_token_ids": [3]}],
)
def test_a_fork_has_its_own_index_and_goes_on_by_itself(sampling: dict[str, object]):
    case = Case({"temperature": 0.5, "seed": 5, **sampling}, [1], [2], sequence_index=1)
    rows = rows_of(case)

    def adjusted() -> set[int]:
        return {row for row in range(4) if any(row in state for state in rows._states)}

    rows.fork_row(3, 0, 2)
    rows.columns.positions[0] += 1
    assert rows.columns["temperature"][3] == 0.5 and rows.columns["seed"][3] == 5
    assert rows.columns["sequence_index"].tolist() == [1, 0, 0, 2]
    assert rows.columns.positions.tolist() == [2, 0, 0, 1]
    assert adjusted() == {0, 3}
    rows.remove_row(3)
    assert adjusted() == {0}
    rows.fork_row(0, 1, 0)
    assert not adjusted(), "a row that begins anew forgets what it was"
