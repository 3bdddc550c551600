"""The adapters that the ranks of a worker hold: one is loaded when all ranks have loaded it."""

from collections.abc import Sequence

from pagewire.internal.v1.worker_pb2 import AdapterLoaded


class AdapterAnswers:
    """What ranks answer to LoadAdapter, until all have."""

    def __init__(self) -> None:
        self._of_ranks: dict[int, dict[int, AdapterLoaded]] = {}  # by number of the order, then by rank
        self._complete: list[AdapterLoaded] = []

    def __bool__(self) -> bool:
        """Whether all ranks have answered something that was not taken yet."""
        return bool(self._complete)

    def add(self, rank: int, num_ranks: int, answer: AdapterLoaded) -> None:
        """Takes the answer of one rank."""
        answers = self._of_ranks.setdefault(answer.number, {})
        answers[rank] = answer
        if len(answers) == num_ranks:
            del self._of_ranks[answer.number]
            self._complete.append(combine_answers([answers[number] for number in range(num_ranks)]))

    def take(self) -> list[AdapterLoaded]:
        """Returns what all ranks have answered since the last call."""
        complete, self._complete = self._complete, []
        return complete


def combine_answers(ranks: Sequence[AdapterLoaded]) -> AdapterLoaded:
    """Returns the answer of a group: bytes and modules of all ranks, their largest rank of a matrix, and the
    first problem of one. Its digest is then that of a rank that has loaded the adapter all the same, if one
    has."""
    combined = AdapterLoaded()
    combined.CopyFrom(next((each for each in ranks if not each.problem), ranks[0]))
    combined.bytes = sum(each.bytes for each in ranks)
    combined.rank = max(each.rank for each in ranks)
    combined.modules[:] = sorted({module for each in ranks for module in each.modules})
    problems = [each.problem for each in ranks]
    if len({*problems}) > 1:
        number = next(rank for rank, problem in enumerate(problems) if problem)
        combined.problem = f"rank {number}: {problems[number]}"
    elif len({each.digest for each in ranks}) > 1:
        combined.problem = "its files are not the same on all ranks"
    return combined


def held_by_all(ranks: Sequence[Sequence[AdapterLoaded]]) -> tuple[list[AdapterLoaded], set[bytes]]:
    """Returns the adapters that every rank holds, with the bytes of all, and the digests of others: a core
    that was killed has told some ranks more. ranks: what each holds."""
    by_digest = [{each.digest: each for each in held} for held in ranks]
    common = [digest for digest in by_digest[0] if all(digest in held for held in by_digest)]
    combined = [combine_answers([held[digest] for held in by_digest]) for digest in common]
    return combined, {digest for held in by_digest for digest in held}.difference(common)
