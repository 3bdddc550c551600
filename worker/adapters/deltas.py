"""The deltas of an adapter while its tensors are placed."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from kernels.api import adapters
from worker.adapters.adapter import AdapterError, Delta
from worker.adapters.config import AdapterConfig
from worker.layers.base import Layer
from worker.layers.experts.experts import WideMatrix
from worker.layers.targets import Target

_DTYPES = torch.float32, torch.bfloat16, torch.float16


class Pair(NamedTuple):
    """Two tensors of a file, with their names, that belong together."""

    module: str  # of the base model, as the file names it
    a: tuple[str, torch.Tensor]
    b: tuple[str, torch.Tensor]

    @property
    def halves(self) -> tuple[tuple[str, torch.Tensor], ...]:
        """A and B."""
        return self.a, self.b


class Deltas:
    """The deltas of each layer that are known so far."""

    def __init__(self, config: AdapterConfig) -> None:
        self.layers: dict[Layer, list[Delta | None]] = {}
        self._config = config

    def name_of(self, pair: Pair, targets: Iterable[Target]) -> str:
        """Returns what patterns match: a module, or where that is a router, which may be no linear layer in
        transformers, its parameter."""
        name = f"{pair.module}.weight"
        is_parameter = any(isinstance(target.layer, WideMatrix) for target in targets)
        return name if is_parameter and self._config.is_named(name) else pair.module

    def rank_of(self, pair: Pair, name: str, found: int) -> int:
        """Returns the rank that a module must have. name: what patterns match. found: the rank of A. Raises
        AdapterError."""
        rank = self._config.rank_of(name) or found
        if rank > adapters.MAX_RANK:
            raise AdapterError(f"tensor {pair.a[0]} has rank {rank}, more than {adapters.MAX_RANK}")
        return rank

    def add(self, targets: Iterable[Target], pair: Pair, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """Adds the deltas of one matrix. name: as for rank_of(). a: [r, in]. b: [out, r]. Raises
        AdapterError."""
        for half, tensor in pair.halves:
            if tensor.dtype not in _DTYPES or tensor.dtype != pair.a[1].dtype:
                raise AdapterError(
                    f"tensor {half} is {_name(tensor.dtype)}: lora_A and lora_B must have one dtype of "
                    f"{', '.join(map(_name, _DTYPES))}"
                )
        scale = self._config.scale_of(name, a.shape[0])
        for target in targets:
            if not target.is_held:
                continue
            parts = self.layers.setdefault(target.layer, [None] * target.num_parts)
            if parts[target.part] is not None:
                raise AdapterError(f"tensor {pair.a[0]}: another tensor changes the same outputs")
            parts[target.part] = Delta(*target.shares(a, b), scale)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
