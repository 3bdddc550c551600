"""Steps for which memory does not suffice are computed in pieces, and give the same tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.internal.v1 import engine_pb2
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.engine_core.fakes import add_request
from tests.worker.test_pressure import InProcess, Outputs, load_of_ten_pools


class Scarce:
    """A model for which memory suffices up to so many tokens."""

    def __init__(self, engine: InProcess, most: int, error: Exception) -> None:
        self.num_failed = 0
        self._most, self._error = most, error
        self._model = engine.runner.backend.model  # type: ignore[attr-defined]
        engine.runner.backend.model = self  # type: ignore[attr-defined]

    def forward(self, batch, layers):
        if len(batch.token_ids) > self._most:
            self.num_failed += 1
            raise self._error
        return self._model.forward(batch, layers)

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


TORCH_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")


@pytest.fixture(scope="module")
def alone(checkpoint: Callable[..., Path]) -> tuple[list[engine_pb2.AddRequest], Outputs]:
    messages = load_of_ten_pools(6)
    engine = InProcess(checkpoint("llama"), blocks=200, swap_costs=None, prefix_cache=False)
    return messages, {key: tokens for each in messages for key, tokens in engine.outputs([each]).items()}


@pytest.mark.parametrize(
    ("most", "error", "prefix_cache", "drafts"),
    [(12, MemoryError(), True, 0), (8, TORCH_ERROR, False, 0), (8, MemoryError(), True, 3)],
    ids=["halves", "quarters", "with drafts"],
)
def test_the_same_tokens(most, error, prefix_cache, drafts, alone, checkpoint) -> None:
    messages, expected = alone
    engine = InProcess(
        checkpoint("llama"), blocks=100, swap_costs=None, prefix_cache=prefix_cache, drafts=drafts
    )
    scarce = Scarce(engine, most, error)
    assert engine.outputs(messages) == expected
    assert scarce.num_failed > 2


@pytest.mark.parametrize(
    ("most", "error"), [(0, MemoryError()), (0, TORCH_ERROR), (12, RuntimeError("a bug"))]
)
def test_what_cannot_be_computed_in_pieces_ends_the_worker(most, error, alone, checkpoint) -> None:
    """Not even a token fits, or it is another error."""
    engine = InProcess(checkpoint("llama"), blocks=100, swap_costs=None, prefix_cache=False)
    Scarce(engine, most, error)
    with pytest.raises(type(error)):
        engine.outputs(alone[0])


def test_a_prompt_whose_scores_are_wanted_needs_its_step(checkpoint) -> None:
    engine = InProcess(checkpoint("llama"), blocks=100, swap_costs=None, prefix_cache=False)
    Scarce(engine, 4, MemoryError())
    with pytest.raises(MemoryError, match="log-probabilities of a prompt"):
        engine.outputs([add_request(1, 9, prompt_logprobs=LogprobOptions())])
