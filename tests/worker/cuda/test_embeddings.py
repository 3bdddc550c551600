"""Values in place of tokens on the CUDA path, in Triton's interpreter."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import InputEmbeddings
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.logprob_columns import Scored
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import Driver, resolved_params
from tests.worker.step.test_embeddings import embeddings
from worker.adapters.adapter import Adapter

PROMPT = [3 + 7 * i % 50 for i in range(13)]
SOME = [0, 5, 6, 12]


def run(driver: Driver, *prompts: tuple[list[int], InputEmbeddings | None]) -> list[list[Scored]]:
    wants = LogprobOptions(top_n=2)
    sequences = [
        driver.add(ids, 2, resolved_params(), wants=wants, embeddings=values)[0] for ids, values in prompts
    ]
    driver.run()
    return [sequence.scores for sequence in sequences]


@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("granite", "float32")])
def test_the_embeddings_of_ids_are_the_ids(
    family: str, dtype: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """All of a prompt, and some positions of it, beside a prompt of ids; in chunks, and where other steps run
    in graphs."""
    interpret(monkeypatch)
    folder = checkpoint(family, num_hidden_layers=1, max_position_embeddings=96)

    def load(budget: int = 64) -> Driver:
        return Driver(folder, budget, record=False, loader=load_on_the_host, dtype=dtype, **SMALL)

    driver = load()
    assert driver.ready.model.input_embedding_size == driver.runner.backend.model.embedding.width
    (expected,) = run(driver, (PROMPT, None))
    with torch.inference_mode():
        table = driver.runner.backend.model.embedding
        values = table.weight[PROMPT]
    mixed = [0 if position in SOME else token for position, token in enumerate(PROMPT)]
    prompts = (
        ([0] * len(PROMPT), embeddings(values)),
        (PROMPT, None),
        (mixed, embeddings(values[SOME], SOME)),
    )
    assert run(driver, *prompts) == [expected] * 3
    driver = load(budget=7)
    driver.runner.backend.capture(7)
    assert run(driver, *prompts) == [expected] * 3


def test_virtual_tokens_of_an_adapter_are_embeddings(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    interpret(monkeypatch)
    folder = checkpoint("llama", num_hidden_layers=1, max_position_embeddings=96)
    driver = Driver(folder, 64, record=False, loader=load_on_the_host, max_loras=1, **SMALL)
    table = driver.runner.backend.model.embedding.weight
    values = table[PROMPT[:4]].detach().clone()
    digest = bytes(32)
    driver.runner.backend.adapters.store.add(Adapter(digest, 0, (), "", {}, values))
    adapter = worker_pb2.RowAdapter(digest=digest, virtual_tokens=4)
    ids = [0] * 4 + PROMPT[4:]
    wants = LogprobOptions(top_n=2)
    (tuned,) = driver.add(ids, 2, resolved_params(), wants=wants, adapter=adapter)
    (plain,) = driver.add(PROMPT, 2, resolved_params(), wants=wants)
    driver.run()
    assert tuned.scores == plain.scores
