"""What ranks say of adapters, together."""

from engine_core.io.rank_adapters import AdapterAnswers, held_by_all
from pagewire.internal.v1.worker_pb2 import AdapterLoaded


def loaded(number: int = 1, digest: bytes = b"a", **fields: object) -> AdapterLoaded:
    return AdapterLoaded(number=number, digest=digest, **{"rank": 4, "bytes": 10} | fields)  # type: ignore[arg-type]


def failed(problem: str) -> AdapterLoaded:
    return AdapterLoaded(number=1, problem=problem)


def answer_of(*ranks: AdapterLoaded) -> AdapterLoaded:
    answers = AdapterAnswers()
    for rank, answer in enumerate(ranks):
        assert not answers
        answers.add(rank, len(ranks), answer)
    (found,) = answers.take()
    assert not answers and not answers.take()
    return found


def test_one_rank_answers_for_itself() -> None:
    assert answer_of(loaded()) == loaded() and answer_of(failed("no")) == failed("no")


def test_all_ranks_answer() -> None:
    """Each in its own time: bytes are those of all."""
    answers = AdapterAnswers()
    answers.add(1, 2, loaded(5, bytes=7))
    answers.add(1, 2, loaded(6))
    answers.add(0, 2, loaded(6))
    assert answers.take() == [loaded(6, bytes=20)]
    answers.add(0, 2, loaded(5))
    assert answers.take() == [loaded(5, bytes=17)]


def test_ranks_that_hold_different_layers() -> None:
    """As stages do: the modules of all of them, and the largest rank of a matrix."""
    assert answer_of(
        loaded(rank=0, bytes=0), loaded(rank=8, modules=["q_proj"]), loaded(modules=["k_proj", "q_proj"])
    ) == loaded(rank=8, bytes=20, modules=["k_proj", "q_proj"])


def test_a_failure_of_one_is_named() -> None:
    """With the digest of what another one holds; a failure of all is that of one worker."""
    assert answer_of(loaded(), failed("no")) == loaded(problem="rank 1: no")
    assert answer_of(failed("no"), loaded()) == loaded(problem="rank 0: no")
    assert answer_of(failed("no"), failed("no")) == failed("no")
    assert "not the same" in answer_of(loaded(), loaded(digest=b"b")).problem


def test_those_that_every_rank_holds() -> None:
    a, b, c = loaded(0, b"a"), loaded(0, b"b"), loaded(0, b"c")
    assert held_by_all([[a, b]]) == ([a, b], set())
    assert held_by_all([[a, b], [c, a]]) == ([loaded(0, b"a", bytes=20)], {b"b", b"c"})
