"""Which rows want log-probabilities, and with which candidates. Rows that want none are nowhere here."""

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2
from worker.step.rows import require


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that are reported at each position besides the chosen one: at most one of the three."""

    top_n: int = 0
    token_ids: tuple[int, ...] = ()
    all: bool = False

    def count(self, vocab_size: int) -> int:
        """How many that is."""
        return vocab_size if self.all else self.top_n or len(self.token_ids)


def read_candidates(options: generation_pb2.LogprobOptions, vocab_size: int) -> Candidates:
    """What the message asks for. Raises PlanError when the vocabulary does not have it."""
    candidates = Candidates(options.top_n, tuple(options.token_ids.ids), options.all)
    require(candidates.top_n <= vocab_size, f"{candidates.top_n} candidates of {vocab_size} tokens")
    require(max(candidates.token_ids, default=0) < vocab_size, "a candidate is out of range")
    return candidates


@dataclass(slots=True)
class PromptWish:
    """Of a row: the positions of its prompt whose log-probabilities are still to come."""

    candidates: Candidates
    next: int
    end: int  # the prompt's length


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Positions start to end - 1 of a row's prompt, which one step finds the log-probabilities of.

    They are those of the logits at start - 1 to end - 2.
    """

    index: int  # of the row among those that compute
    row: int
    offset: int  # of position start - 1 among the positions that the row computes
    start: int
    end: int
    candidates: Candidates


class LogprobWishes:
    """A worker.step.plan_reader.RowFeature."""

    def __init__(self, vocab_size: int) -> None:
        self.sampled: dict[int, Candidates] = {}
        """Rows that want them of what they sample."""
        self._prompts: dict[int, PromptWish] = {}
        self._vocab_size = vocab_size

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if new.HasField("logprobs"):
            self.sampled[row] = read_candidates(new.logprobs, self._vocab_size)
        if new.HasField("prompt_logprobs") and new.prompt_logprobs_start < len(prompt_ids):
            require(new.prompt_logprobs_start > 0, "log-probabilities of position 0 do not exist")
            candidates = read_candidates(new.prompt_logprobs, self._vocab_size)
            self._prompts[row] = PromptWish(candidates, new.prompt_logprobs_start, len(prompt_ids))

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """The copy samples as its source does. The prompt is its source's affair."""
        if source_row in self.sampled:
            self.sampled[row] = self.sampled[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self.sampled.pop(row, None)
        self._prompts.pop(row, None)

    def prompt_parts(self, rows: Integers, starts: Integers, counts: Integers) -> list[PromptPart]:
        """What a step of these rows [R] finds; it is not wished for any more. Raises PlanError."""
        return list(self._take_parts(rows, starts, counts)) if self._prompts else []

    def _take_parts(self, rows: Integers, starts: Integers, counts: Integers) -> Iterator[PromptPart]:
        for index, row in enumerate(rows.tolist()):
            wish = self._prompts.get(row)
            if wish is None:
                continue
            first = int(starts[index])
            require(first < wish.next, f"row {row} leaves out log-probabilities of its prompt")
            end = min(first + int(counts[index]) + 1, wish.end)
            if end > wish.next:
                yield PromptPart(index, row, wish.next - 1 - first, wish.next, end, wish.candidates)
                wish.next = end
            if end == wish.end:
                del self._prompts[row]
