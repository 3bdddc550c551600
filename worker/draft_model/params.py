"""The parameters that a draft model samples a row with: those of the row, without what depends on its output.

The draft model takes the row's number of (seed, sequence index, position), its temperature, filters, bias and
allowed tokens: where its distribution is that of the target, so is its token. Penalties and bad words would
need a history that goes back where drafts are refused; without them it only drafts worse.
"""

from kernels.ops.sampling.columns import NEUTRAL
from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2

_KEPT = (*NEUTRAL, "seed")


def draft_row(new: worker_pb2.NewRow) -> worker_pb2.NewRow:
    """Returns a row that begins as this one does, as far as a draft model's sampler needs it."""
    sampling = generation_pb2.SamplingParams(allowed_token_ids=new.sampling.allowed_token_ids)
    for name in _KEPT:
        if new.sampling.HasField(name):
            setattr(sampling, name, getattr(new.sampling, name))
    for token, bias in new.sampling.logit_bias.items():
        sampling.logit_bias[token] = bias
    return worker_pb2.NewRow(row=new.row, sequence_index=new.sequence_index, sampling=sampling)
