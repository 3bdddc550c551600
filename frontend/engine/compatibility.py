"""Cores that serve one model: what they agree on, and what holds at each of them. Pure.

A stream goes on at any core, so all of them must compute the same: architecture, type, vocabulary, context
length, ends, and the size of the weights. (Of two checkpoints of one shape nobody notices here that they
are different.)
"""

from collections.abc import Sequence

from pagewire.internal.v1.engine_pb2 import ModelFacts, Welcome

_SMALLEST = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "max_priority")
"""Of a Welcome: what fits one core may not fit the next one, and a request may have to move."""


def agree(known: ModelFacts | None, present: Sequence[Welcome | None]) -> ModelFacts | None:
    """The model that counts: that of the first core, until all are there and none of them has it.

    present: by rank; None for a core that is away: it may come back as it was.
    """
    welcomes = [welcome for welcome in present if welcome is not None]
    if not welcomes or any(welcome.model == known for welcome in welcomes):
        return known
    if known is None or len(welcomes) == len(present):
        return welcomes[0].model
    return known


def difference(known: ModelFacts, model: ModelFacts) -> str:
    """In what a model is another one, for people; empty: in nothing."""
    names = (field.name for field in ModelFacts.DESCRIPTOR.fields)
    return ", ".join(
        f"{name} {_text(model, name)} instead of {_text(known, name)}"
        for name in names
        if getattr(model, name) != getattr(known, name)
    )


def combine(welcomes: Sequence[Welcome], num_ranks: int) -> Welcome:
    """What holds at each of these cores, of which there is one at least; the rest as the first one says.

    num_ranks: cores in all, those that are away included.
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
