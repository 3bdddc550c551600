"""What a step computes for the tokens that are sampled from. Imports no torch."""

from enum import IntEnum


class Wanted(IntEnum):
    """What is read of the tokens that a step samples from: each with those before it."""

    STATES = 0
    LOGITS = 1
    TOKENS = 2
    """Those that the parameters of their rows choose, and nothing else."""
