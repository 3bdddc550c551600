"""Finds the target modules of a model while its weights are loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from worker.layers.base import Layer, Weight
from worker.layers.embedding import VocabEmbedding
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.latent import HeadMatrix
from worker.layers.matrix import MatrixOwner
from worker.layers.targets import StackedTarget, Target, TargetModules
from worker.models.base import LanguageModel
from worker.weights.loader import layers_and_names


def find_targets(
    model: LanguageModel,
    names: Mapping[str, tuple[str, ...]],
    prefix: str,
    checkpoint: Path | None,
) -> TargetModules:
    """Returns the modules of a model. Call it before weights are packed. names, prefix: of the family.
    checkpoint: that of TargetModules."""
    modules = TargetModules({}, frozenset(), prefix, checkpoint)
    targets: dict[str, list[Target]] = {}
    stacked: dict[str, dict[str, StackedTarget]] = {}
    others = {*names["head"], *names["embedding"]}
    of_images = set() if model.vision is None else set(model.vision.modules())
    for layer, stored in layers_and_names(model, names):
        if layer in (model.embedding, model.head):
            continue
        if layer in of_images:
            others.update(stored)
            continue
        parameters = _parameters(layer, stored) if isinstance(layer, ExpertMatrices) else {}
        if not isinstance(layer, MatrixOwner) or not layer.takes_adapters:
            others.update(stored, parameters)
            continue
        if isinstance(layer, ExpertMatrices):
            for module, name in parameters.items():
                stacked.setdefault(modules.normal_name(module), {})[name] = _stacked(layer)
        if "{expert}" in stored[0] or not parameters:
            weights = [weight for weight in layer.weights(*stored) if len(weight.shape) == 2]
            for part, weight in enumerate(weights):
                module = modules.normal_name(weight.name.removesuffix(".weight"))
                targets.setdefault(module, []).append(_target(layer, part, len(weights), weight))
        if isinstance(layer, ExpertMatrices) and "{expert}" in stored[0]:
            targets |= {modules.normal_name(each): [target] for each, target in _elsewhere(layer, stored)}
    (head,), (embedding,) = (map(modules.normal_name, names[each]) for each in ("head", "embedding"))
    if model.has_head and model.head.takes_adapters:
        targets[head] = [_of_table(model.head, 0)]
    embeddings = {embedding: (_of_table(model.embedding, 1),)} if model.embedding.takes_adapters else {}
    return replace(
        modules,
        targets={module: tuple(each) for module, each in targets.items()},
        others=frozenset(map(modules.normal_name, others)),
        embeddings=embeddings,
        tied={head: embedding} if model.head is model.embedding else {},
        stacked=stacked,
    )


def _of_table(table: VocabEmbedding, part: int) -> Target:
    """part: 0: of the head, 1: of the lookup."""
    (inputs, (outputs,)), rows = table.adapted_matrices[part], slice(None)
    if part == 0:
        outputs, rows = table.vocab_size, table.rows
    return Target(table, part, len(table.adapted_matrices), (outputs, inputs), rows, ())


def _elsewhere(layer: ExpertMatrices, stored: tuple[str, ...]) -> Iterator[tuple[str, Target]]:
    """Yields the modules of the experts that other ranks hold. stored: as layers_and_names() yields them."""
    weights = [name for name in layer.elsewhere(*stored) if name.endswith(".weight")]
    for name, length in zip(weights, cycle(layer.out_lengths), strict=False):
        shape = length, layer.in_features
        yield name.removesuffix(".weight"), Target(layer, 0, 0, shape, slice(0), (), is_held=False)


def _parameters(layer: ExpertMatrices, stored: tuple[str, ...]) -> dict[str, str]:
    """Returns the module and the name of the parameter [N, out, in] of all experts: as transformers 5 has it
    for all families, and as the checkpoint has it, where that is one tensor. stored: as layers_and_names()
    yields them."""
    name = "gate_up_proj" if len(layer.out_lengths) > 1 else "down_proj"
    if "{expert}" in stored[0]:
        return {stored[0].partition(".{expert}")[0]: name}
    module, _, own_name = stored[0].rpartition(".")
    return {f"{module.rpartition('.')[0]}.experts": name, module: own_name}


def _stacked(layer: ExpertMatrices) -> StackedTarget:
    rows, num_parts = layer.stacked_rows(), len(layer.out_lengths)
    shape, count = (layer.out_features, layer.in_features), layer.num_experts * num_parts

    def targets_of(expert: int) -> tuple[Target, ...]:
        first, is_held = (expert - layer.held.start) * num_parts, expert in layer.held
        return tuple(
            Target(layer, first + part, count, shape, rows[part], (), is_held=is_held)
            for part in range(num_parts)
        )

    return StackedTarget(shape, tuple(map(targets_of, range(layer.num_stored))))


def _target(layer: Layer, part: int, num_parts: int, weight: Weight) -> Target:
    rows, columns = (*weight.part, slice(None), slice(None))[:2]
    outputs, inputs = weight.shape
    is_turned = isinstance(layer, HeadMatrix) and layer.transposed
    if weight.transposed and not is_turned:
        rows, outputs, inputs = columns, inputs, outputs
    return Target(layer, part, num_parts, (outputs, inputs), rows, weight.order, is_turned)
