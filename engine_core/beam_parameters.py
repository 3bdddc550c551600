"""What a request says of its beam search."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeamParameters:
    """Parameters of a request's search, and the conditions that end its sequences."""

    width: int  # beams
    num_results: int  # at most width
    length_penalty: float
    early_stopping: bool
    stops: frozenset[int]  # tokens that end a sequence, at positions from min_tokens on
    min_tokens: int
    max_output: int  # tokens, at least 1
    vocab_size: int

    @property
    def num_candidates(self) -> int:
        """Tokens that the worker proposes for each beam: enough to contain its share of the best `width`
        candidates, and of the best `width` that do not end."""
        return min(self.width + len(self.stops), self.vocab_size)
