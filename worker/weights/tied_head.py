"""A head that config.json ties to the embedding, in checkpoints that hold both: they must be the same."""

from collections.abc import Mapping

import torch

from pagewire.errors import StartupError
from worker.weights.loader import PIECE_VALUES
from worker.weights.source import WHAT, TensorSource


def check_tied_head(
    checkpoint: TensorSource, names: Mapping[str, tuple[str, ...]], optional_prefix: str = ""
) -> None:
    """Raises StartupError where the checkpoint has a head with other values than the embedding, of which one
    would be ignored. names: of the family; optional_prefix: see worker.weights.loader.load_weights."""
    (embedding,), (head,) = names["embedding"], names["head"]
    stored = (f"{embedding}.weight", f"{embedding.removeprefix(optional_prefix)}.weight")
    found = next((name for name in stored if name in checkpoint), None)
    if found is None or f"{head}.weight" not in checkpoint or _are_equal(checkpoint, found, f"{head}.weight"):
        return
    raise StartupError(
        WHAT,
        f"config.json ties the head to the embedding, but tensors {head}.weight and {found} differ",
        f"set tie_word_embeddings to false in config.json, or remove {head}.weight from the checkpoint",
    )


def _are_equal(checkpoint: TensorSource, one: str, other: str) -> bool:
    """Reads both a few rows at a time."""
    shape = checkpoint.shape(one)
    if checkpoint.shape(other) != shape or len(shape) != 2:
        return False
    step = max(1, PIECE_VALUES // shape[1])
    parts = [(slice(row, min(row + step, shape[0])),) for row in range(0, shape[0], step)]
    return all(
        torch.equal(checkpoint.read(one, part).float(), checkpoint.read(other, part).float())
        for part in parts
    )
