"""The modules of a checkpoint that adapters may change (peft's target modules), and where their rows went."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from worker.layers.base import Layer


@dataclass(frozen=True, slots=True)
class Target:
    """Rows of a module's weight that are one part of a layer."""

    layer: Layer
    part: int
    num_parts: int  # of the layer
    shape: tuple[int, int]  # of the module's weight: outputs, inputs
    rows: slice
    order: tuple[int, ...]  # see Weight
    is_turned: bool = False  # the layer multiplies by these rows from the other side
    is_held: bool = True  # False: by another rank

    def shares(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[r, in] and [out, r] -> [r, in] and [held rows of the part, r], in the layer's order; of a layer
        that is turned, its inputs are the rows."""
        rows = b[self.rows]
        rows = (rows[list(self.order)] if self.order else rows).contiguous()
        return (rows.T.contiguous(), a.T.contiguous()) if self.is_turned else (a, rows)

    def of(self, layers: Collection[Layer]) -> "Target":
        """Returns it for a rank that has these layers alone."""
        return self if self.layer in layers else replace(self, is_held=False)


@dataclass(frozen=True, slots=True)
class StackedTarget:
    """The matrices of all experts of one product, as one parameter [N, out, in] of a module."""

    shape: tuple[int, int]  # of each matrix: outputs, inputs
    experts: tuple[tuple[Target, ...], ...]  # of each expert: all that its matrix is


@dataclass(frozen=True)
class TargetModules:
    """All modules of one model by normal name."""

    targets: Mapping[str, tuple[Target, ...]]
    others: frozenset[str]
    """Modules that the model has, and of which adapters are not supported: norms, routers."""
    prefix: str
    """Family.optional_prefix."""
    checkpoint: Path | None
    """What the model was loaded from; None: random weights."""
    embeddings: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    """Modules that look up tokens. Their inputs are all token ids."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Modules of heads whose weights are those of embeddings, and these."""
    stacked: Mapping[str, Mapping[str, StackedTarget]] = field(default_factory=dict)
    """Modules whose parameters, by name, are the matrices of all experts (peft's target parameters)."""

    def normal_name(self, name: str) -> str:
        """Returns the name without parts that depend on what the decoder is embedded in, or on the version of
        transformers: "layers.0.mlp" for "model.language_model.layers.0.block_sparse_moe"."""
        name = re.sub(r"(^|\.)language_model\.", r"\1", name).removeprefix(self.prefix)
        return name.replace(".block_sparse_moe", ".mlp").replace(".router.layer", ".router")

    def of(self, layers: Collection[Layer]) -> "TargetModules":
        """Returns all modules for a rank that has these layers alone. It still checks what an adapter has for
        the others."""

        def targets(found: Mapping[str, tuple[Target, ...]]) -> dict[str, tuple[Target, ...]]:
            return {module: tuple(each.of(layers) for each in parts) for module, parts in found.items()}

        def stacked(target: StackedTarget) -> StackedTarget:
            experts = (tuple(each.of(layers) for each in parts) for parts in target.experts)
            return replace(target, experts=tuple(experts))

        return replace(
            self,
            targets=targets(self.targets),
            embeddings=targets(self.embeddings),
            stacked={
                module: {name: stacked(target) for name, target in parameters.items()}
                for module, parameters in self.stacked.items()
            },
        )

    def is_unsupported(self, module: str) -> bool:
        """True for a module that the model has, by its normal name, where adapters are not supported."""
        return re.sub(r"\bexperts\.\d+\.", "experts.{expert}.", module) in self.others
