"""Decides which cores serve the same model, and combines their limits. Pure.

A stream may continue on any core, so all of them must compute the same: architecture, dtype, vocabulary,
context length, end tokens and size of the weights. (Two checkpoints of one shape are not told apart.)
"""

from collections.abc import Sequence

from pagewire.internal.v1.engine_pb2 import ModelFacts, Welcome

_SMALLEST = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "max_priority", "max_draft_tokens")
"""Fields of a Welcome of which the smallest counts: a request may have to move to any core."""


def agree(known: ModelFacts | None, present: Sequence[Welcome | None]) -> ModelFacts | None:
    """Returns the model that counts: the first core's, until all cores are connected and none of them has it.

    present: by rank; None for a core that is away and may come back unchanged.
    """
    welcomes = [welcome for welcome in present if welcome is not None]
    if not welcomes or any(welcome.model == known for welcome in welcomes):
        return known
    if known is None or len(welcomes) == len(present):
        return welcomes[0].model
    return known


def difference(known: ModelFacts, model: ModelFacts) -> str:
    """Describes how two models differ, for people; empty when they do not."""
    names = (field.name for field in ModelFacts.DESCRIPTOR.fields)
    return ", ".join(
        f"{name} {_text(model, name)} instead of {_text(known, name)}"
        for name in names
        if getattr(model, name) != getattr(known, name)
    )


def combine(welcomes: Sequence[Welcome], num_ranks: int) -> Welcome:
    """Returns what holds at each of these cores (at least one); other fields are the first core's.

    num_ranks: number of cores, including those that are away.
    """
    combined = Welcome()
    combined.CopyFrom(welcomes[0])
    for name in _SMALLEST:
        setattr(combined, name, min(getattr(welcome, name) for welcome in welcomes))
    combined.parallelism.data = num_ranks
    return combined


def _text(model: ModelFacts, name: str) -> str:
    value = getattr(model, name)
    return str(list(value)) if name == "eos_token_ids" else str(value)
