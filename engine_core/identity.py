"""What an engine core is to its frontends: the facts in its Welcome, and the limits of requests."""

from dataclasses import dataclass

from pagewire.internal.v1.engine_pb2 import Welcome

MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of requests, known once the worker is ready."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    eos_token_ids: frozenset[int]
    num_blocks: int
    block_size: int
    max_priority: int = MAX_PRIORITY
    """Priorities are -max_priority to max_priority; 0: there are no classes."""
    has_grammars: bool = False
    """The worker masks tokens by grammars."""
    embedding_size: int = 0
    """Elements of the vector of a row that pools; 0: rows cannot pool."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the core tells each frontend about itself, and what it checks requests against."""

    welcome: Welcome
    limits: Limits

    @property
    def epoch(self) -> int:
        """Number of this start of the core."""
        return self.welcome.epoch
