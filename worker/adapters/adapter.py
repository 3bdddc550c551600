"""A LoRA adapter that has been read and placed: what it adds to the outputs of which layers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pagewire.errors import PagewireError, one_line
from worker.layers.base import Layer

_MAX_SHOWN = 100
"""Characters of a wrong value."""


class AdapterError(PagewireError):
    """An adapter cannot be loaded. The message names the file, the field or the tensor."""

    def __init__(self, why: str) -> None:
        super().__init__(one_line(why))


def wrong_field(name: str, value: Any, why: str) -> AdapterError:
    """Returns the error of a field of adapter_config.json, with the beginning of its value."""
    return AdapterError(f"{name} is {repr(value)[:_MAX_SHOWN]}: {why}")


def check_known(
    values: Mapping[str, Any], known: Collection[str], reasons: Mapping[str, str] | None = None
) -> None:
    """Raises AdapterError for a field that is not known, and not off. reasons: why some are not supported."""
    for name, value in values.items():
        if value and name not in known:
            why = (reasons or {}).get(name, "the field is not known, and may change the outputs")
            raise wrong_field(name, value, why)


@dataclass(frozen=True)
class Delta:
    """What one part of a layer's output gains: y[:, part] += scale * (x @ a.T) @ b.T.

    Parts that the file has fused share one `a`: it is the same tensor object.
    """

    a: torch.Tensor  # [r, held inputs], r at most MAX_RANK, float32, bfloat16 or float16, as the file has it
    b: torch.Tensor  # [held rows of the part, r], dtype of `a`; rows in the order in which the layer has them
    scale: float  # alpha / r, or alpha / sqrt(r); of this module


LayerDeltas = tuple[Delta | None, ...]
"""One entry per part of a layer's outputs, in the order of MatrixOwner.adapted_matrices: of experts, all
parts of the first, then those of the next."""


@dataclass(frozen=True)
class Adapter:
    """All deltas of one adapter."""

    digest: bytes
    """32 bytes: blake2b of the fields of adapter_config.json that count and of the bytes of the tensors."""
    rank: int
    """The largest of all deltas."""
    invocation: tuple[int, ...]
    """Token ids that activate it (aLoRA); empty: it is always active."""
    base: str
    """Name of its base model, as the file gives it: shown, not trusted."""
    deltas: Mapping[Layer, LayerDeltas]
    virtual_tokens: torch.Tensor | None = None
    """[n, E] embeddings that stand before each prompt, in place of deltas; None: there are none."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors; one that parts share counts once."""
        tensors = {
            id(tensor): tensor.nbytes
            for parts in self.deltas.values()
            for delta in parts
            if delta is not None
            for tensor in (delta.a, delta.b)
        }
        return sum(tensors.values()) + (0 if self.virtual_tokens is None else self.virtual_tokens.nbytes)
