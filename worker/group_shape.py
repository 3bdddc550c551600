"""How many ranks a worker has, and which of them exchange by themselves. Needs no torch."""

from pagewire.internal.v1 import worker_pb2


def group_shape(initialize: worker_pb2.Initialize) -> tuple[int, int]:
    """Returns how many ranks share each layer, and how many stages the layers have."""
    return max(1, initialize.tensor_parallel_size), max(1, initialize.pipeline_parallel_size)


def parts_of(tensor: int, pipeline: int) -> list[tuple[int, ...]]:
    """Returns the ranks that exchange by themselves, where a model has stages: those of each stage, and each
    with the one that has its hidden states next. The ranks of a stage have consecutive numbers."""
    if pipeline == 1:
        return []
    size = tensor * pipeline
    stages = [tuple(range(first, first + tensor)) for first in range(0, size, tensor)]
    return (stages if tensor > 1 else []) + [(rank, (rank + tensor) % size) for rank in range(size)]
