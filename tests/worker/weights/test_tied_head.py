"""A head that is tied to the embedding, in checkpoints that hold one of both, both, or two that differ."""

import pytest
import torch

from pagewire.errors import StartupError
from worker.weights import loader
from worker.weights.loader import check_tied_head
from worker.weights.source import TensorSource

NAMES = {"embedding": ("model.embed_tokens",), "head": ("lm_head",)}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Source(TensorSource):
    """These tensors, and how many values of one were read at once."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self._tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.most_read = 0

    def close(self) -> None:
        pass

    def names(self) -> list[str]:
        return [*self._tensors]

    def file_of(self, name: str) -> str:
        return "file"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        tensor = self._tensors[name][part]
        self.most_read = max(self.most_read, tensor.numel())
        return tensor


def matrix(rows: int = 7, columns: int = 4) -> torch.Tensor:
    return torch.arange(rows * columns).float().view(rows, columns)


def both(embedding: torch.Tensor, head: torch.Tensor) -> Source:
    return Source(model__embed_tokens__weight=embedding, lm_head__weight=head)


@pytest.mark.parametrize(
    "source",
    [
        Source(model__embed_tokens__weight=matrix()),
        Source(lm_head__weight=matrix()),
        Source(),
        both(matrix(), matrix()),
        both(matrix(), matrix().to(torch.bfloat16)),
    ],
    ids=["no head", "no embedding", "neither", "the same", "the same in another type"],
)
def test_what_is_no_contradiction(source: Source):
    check_tied_head(source, NAMES)


@pytest.mark.parametrize("row", range(7))
@pytest.mark.parametrize("values", [1, 4, 9, 1000])
def test_one_value_that_differs(row: int, values: int, monkeypatch: pytest.MonkeyPatch):
    """In any row, however many are read at once: at least one, and no more values than allowed beyond it."""
    monkeypatch.setattr(loader, "PIECE_VALUES", values)
    head = matrix()
    head[row, 3] += 1
    source = both(matrix(), head)
    with pytest.raises(StartupError) as refused:
        check_tied_head(source, NAMES)
    assert EMBEDDING in refused.value.why and HEAD in refused.value.why and "differ" in refused.value.why
    assert "tie_word_embeddings" in refused.value.todo
    assert 4 <= source.most_read <= max(4, values)


@pytest.mark.parametrize(
    "head",
    [matrix(8), matrix(7, 5), matrix().t(), matrix().flatten()],
    ids=["rows", "columns", "turned", "flat"],
)
def test_another_shape_differs(head: torch.Tensor):
    with pytest.raises(StartupError, match="differ"):
        check_tied_head(both(matrix(), head), NAMES)


def test_vectors_are_no_heads():
    """Of equal values, too."""
    with pytest.raises(StartupError, match="differ"):
        check_tied_head(both(matrix().flatten(), matrix().flatten()), NAMES)


@pytest.mark.parametrize("equal", [True, False])
def test_checkpoints_of_the_bare_model_lack_a_part_of_the_name(equal: bool):
    """It is taken off where it may be missing; otherwise such a tensor is another one."""
    source = Source(embed_tokens__weight=matrix(), lm_head__weight=matrix() + (0 if equal else 1))
    check_tied_head(source, NAMES)
    if equal:
        check_tied_head(source, NAMES, "model.")
    else:
        with pytest.raises(StartupError, match=r"lm_head\.weight and embed_tokens\.weight differ"):
            check_tied_head(source, NAMES, "model.")
