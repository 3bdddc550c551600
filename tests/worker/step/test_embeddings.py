"""Values in place of tokens of a prompt: the logits of transformers, and the same bits in every step."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import InputEmbeddings
from pagewire.ipc.columns import pack_u32
from tests.worker.fakes import DrivenSequence, Driver
from worker.step.embeddings import EmbeddingRows, tokens_of_prompt
from worker.step.rows import PlanError

FAMILIES = ("llama", "gemma3", "granite", "gpt2", "opt")
"""Embeddings as they are; scaled by the lookup; scaled behind it; with positions; narrower than the model."""
PROMPT = [3 + 7 * i % 50 for i in range(21)]
Logits = list[torch.Tensor]


def embeddings(values: torch.Tensor, positions: list[int] | None = None) -> InputEmbeddings:
    name = str(values.dtype).removeprefix("torch.")
    data = values.contiguous().view(torch.uint8).numpy().tobytes()
    at = range(len(values)) if positions is None else positions
    return InputEmbeddings(dtype=name, positions=pack_u32(at), values=data)


def random_values(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) / 8


def run(folder: Path, *prompts: tuple[list[int], InputEmbeddings | None], **settings: object) -> list[Logits]:
    driver = Driver(folder, **settings)  # type: ignore[arg-type]
    sequences = [driver.add(ids, 4, embeddings=values)[0] for ids, values in prompts]
    driver.run()
    return [sequence.logits for sequence in sequences]


def assert_same(found: Logits, expected: Logits) -> None:
    assert len(found) == len(expected) == 4
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("family", FAMILIES)
def test_as_transformers(family: str, checkpoint: Callable[..., Path]):
    folder = checkpoint(family)
    judge = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    width = judge.get_input_embeddings().weight.shape[1]
    values = random_values(13, width)
    [found] = run(folder, ([0] * 13, embeddings(values)), dtype="float32")
    with torch.inference_mode():
        expected = judge(inputs_embeds=values[None]).logits[0, -1]
    assert (found[0] - expected).abs().max() < 1e-4 * max(expected.max() - expected.min(), 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_embeddings_of_ids_are_the_ids(family: str, dtype: str, checkpoint: Callable[..., Path]):
    """All of a prompt, and some positions of it."""
    folder = checkpoint(family)
    judge = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    with torch.inference_mode():
        values = judge.get_input_embeddings()(torch.tensor(PROMPT)).clone()
    [expected] = run(folder, (PROMPT, None), dtype=dtype)
    [whole] = run(folder, ([0] * len(PROMPT), embeddings(values)), dtype=dtype)
    assert_same(whole, expected)
    some = [0, 5, 6, 20]
    ids = [0 if position in some else token for position, token in enumerate(PROMPT)]
    [mixed] = run(folder, (ids, embeddings(values[some], some)), dtype=dtype)
    assert_same(mixed, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_bits_do_not_depend_on_the_step(family: str, checkpoint: Callable[..., Path]):
    """Alone, in chunks, beside prompts of ids and of other values, preempted, and forked."""
    folder = checkpoint(family)
    width = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight.shape[1]
    values = embeddings(random_values(17, width))
    prompt, others = ([0] * 17, values), ([0] * 9, embeddings(random_values(9, width, seed=1)))
    settings = {"dtype": "bfloat16"}
    [alone] = run(folder, prompt, **settings)
    assert_same(run(folder, prompt, budget=5, **settings)[0], alone)
    assert_same(run(folder, (PROMPT, None), others, prompt, budget=11, **settings)[2], alone)
    driver = Driver(folder, dtype="bfloat16")
    [sequence] = driver.add(prompt[0], 4, embeddings=values)
    driver.step()
    driver.step()
    driver.preempt(sequence)
    driver.run()
    assert_same(sequence.logits, alone)
    driver = Driver(folder, dtype="bfloat16")
    forks: list[DrivenSequence] = driver.add(prompt[0], 4, n=3, embeddings=values)
    driver.run()
    for fork in forks:
        assert_same(fork.logits, alone)


def test_values_stay_for_a_step_that_is_computed_again():
    """In smaller parts, for which memory suffices."""

    def step(start: int, count: int) -> Any:
        return SimpleNamespace(
            **{n: np.array([v]) for n, v in (("rows", 0), ("starts", start), ("counts", count))}
        )

    def found(start: int, count: int) -> int:
        values = rows.of_step(np.array([0]), step(start, count))
        return 0 if values is None else len(values.tokens)

    rows = EmbeddingRows(torch.float32, lambda digest: torch.ones(20, 4))
    rows.add_row(0, worker_pb2.NewRow(adapter=worker_pb2.RowAdapter(virtual_tokens=20)), [0] * 60, [])
    rows.forget(step(0, 60))
    assert [found(*part) for part in ((0, 30), (30, 30), (0, 15), (15, 15))] == [20, 0, 15, 5]
    rows.forget(step(20, 1))
    assert found(0, 30) == 0


def new_row(**changes: object) -> worker_pb2.NewRow:
    given = {"dtype": "float32", "positions": pack_u32([0, 2]), "values": bytes(2 * 4 * 3)} | changes
    return worker_pb2.NewRow(embeddings=InputEmbeddings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"positions": b""}, "of no token"),
        ({"positions": pack_u32([2, 0])}, "out of order"),
        ({"positions": pack_u32([1, 1])}, "out of order"),
        ({"positions": pack_u32([0, 3])}, "beyond its prompt"),
        ({"values": bytes(25)}, "different sizes"),
        ({"values": b""}, "different sizes"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(changes: dict[str, object], problem: str):
    with pytest.raises(PlanError, match=problem):
        EmbeddingRows(torch.float32).add_row(0, new_row(**changes), [0, 0, 0], [])


def virtual_row(count: int, **fields: object) -> worker_pb2.NewRow:
    adapter = worker_pb2.RowAdapter(digest=b"d", virtual_tokens=count)
    return worker_pb2.NewRow(adapter=adapter, **fields)  # type: ignore[arg-type]


def test_virtual_tokens_that_do_not_fit_are_refused():
    rows = EmbeddingRows(torch.float32, {b"d": torch.ones(2, 3)}.get)
    rows.add_row(0, virtual_row(2), [0, 0, 5], [])
    for count, prompt in ((1, [0, 0, 5]), (3, [0, 0, 0, 5]), (2, [0, 0])):
        with pytest.raises(PlanError, match="virtual tokens"):
            rows.add_row(1, virtual_row(count), prompt, [])
    with pytest.raises(PlanError, match="embeddings and virtual tokens"):
        rows.add_row(2, virtual_row(2, embeddings=new_row().embeddings), [0, 0, 0], [])
    with pytest.raises(PlanError, match="not loaded"):
        EmbeddingRows(torch.float32).add_row(0, virtual_row(2), [0, 0, 5], [])


def test_ids_that_stand_for_nothing_are_left_out():
    assert tokens_of_prompt(new_row(), [7, 8, 9]) == [8]
    assert tokens_of_prompt(virtual_row(2), [7, 8, 9]) == [9]
    assert tokens_of_prompt(worker_pb2.NewRow(), [7, 8, 9]) == [7, 8, 9]
