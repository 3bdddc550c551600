"""A check of the checker: faults that are planted in a history are found, and nothing else is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire_client.results import Candidate, Delta, FinishReason, Generation, TokenLogprob, Usage
from tests.chaos.checker import Wrong, check, tally
from tests.chaos.history import OK, REFUSED, End, History, Message, StreamRecord, Writer, read

NUM_TOKENS = 6


def tokens(index: int) -> list[int]:
    return [100 * index + place for place in range(NUM_TOKENS)]


def make_stream(writer: Writer, number: int, *, twin: bool, chunks: list[int]) -> None:
    """Two sequences, cut into messages of these lengths."""
    writer.send(number, 0, twin=twin)
    writer.attempt(number)
    for index in range(2):
        position = 0
        for length in chunks:
            ids = tokens(index)[position : position + length]
            scores = [TokenLogprob(-0.5, 1, [Candidate(token, -0.5, 1)]) for token in ids]
            last = position + length == NUM_TOKENS
            reason = FinishReason.MAX_TOKENS if last else None
            text = "".join(f"<{token}>" for token in ids)
            writer.message(number, Delta(index, text, ids, position, reason, None, scores))
            position += length
    result = Generation(seed=5, usage=Usage(3, 0, 2 * NUM_TOKENS), prompt_logprobs=[None])
    writer.end(number, OK, "", result)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A twin, and a stream that equals it in other pieces."""
    writer = Writer(tmp_path / "history", seed=1, tolerance=0.0)
    writer.case(0, name="two", streams=True)
    make_stream(writer, 0, twin=True, chunks=[1] * NUM_TOKENS)
    make_stream(writer, 1, twin=False, chunks=[1, 2, 3])
    writer.strike(0, "engine", "SIGKILL")
    writer.close()
    return read(tmp_path / "history")


def test_a_history_without_faults(history: History):
    assert check(history) == []
    assert set(tally([]).values()) == {0}
    assert [len(stream.messages) for stream in history.streams.values()] == [12, 6]
    assert history.streams[1].messages[2].scores == [(-0.5, 1, ((place, -0.5, 1),)) for place in (3, 4, 5)]


def lose_a_message(stream: StreamRecord) -> None:
    del stream.messages[1]


def lose_the_last(stream: StreamRecord) -> None:
    last = stream.messages[-1]
    last.token_ids, last.scores, last.text = last.token_ids[:-1], last.scores[:-1], "<103><104>"


def lose_a_sequence(stream: StreamRecord) -> None:
    del stream.messages[3:]


def repeat_a_message(stream: StreamRecord) -> None:
    stream.messages.insert(1, stream.messages[1])


def repeat_a_token(stream: StreamRecord) -> None:
    """The next message begins with what the one before ended with."""
    message = stream.messages[1]
    message.position -= 1
    message.token_ids = [0, *message.token_ids]


def change_a_token(stream: StreamRecord) -> None:
    stream.messages[1].token_ids[1] += 1


def swap_two_messages(stream: StreamRecord) -> None:
    one, other = stream.messages[1:3]
    stream.messages[1:3] = [other, one]
    one.time, other.time = other.time, one.time


def change_the_text(stream: StreamRecord) -> None:
    stream.messages[2].text += "!"


def lose_text(stream: StreamRecord) -> None:
    stream.messages[1].text = ""


def change_a_score(stream: StreamRecord) -> None:
    logprob, rank, candidates = stream.messages[1].scores[0]
    stream.messages[1].scores[0] = (logprob - 1e-6, rank, candidates)


def change_a_candidate(stream: StreamRecord) -> None:
    logprob, rank, _ = stream.messages[1].scores[0]
    stream.messages[1].scores[0] = (logprob, rank, ((9, -0.5, 1),))


def change_the_finish(stream: StreamRecord) -> None:
    stream.messages[-1].finish = "stop"


def forget_the_finish(stream: StreamRecord) -> None:
    stream.messages[-1].finish = None


def count_wrongly(stream: StreamRecord) -> None:
    assert stream.end is not None
    stream.end.usage = (3, 2 * NUM_TOKENS + 1)


def change_the_seed(stream: StreamRecord) -> None:
    assert stream.end is not None
    stream.end.seed = 6


def forget_scores_of_the_prompt(stream: StreamRecord) -> None:
    assert stream.end is not None
    stream.end.prompt_scores = []


def come_after_the_finish(stream: StreamRecord) -> None:
    stream.messages.append(Message(stream.messages[-1].time, 0, NUM_TOKENS, [7], "<7>"))


def come_after_the_status(stream: StreamRecord) -> None:
    assert stream.end is not None
    stream.messages[-1].time = stream.end.time + 1


def fail(stream: StreamRecord) -> None:
    del stream.messages[3:]
    stream.end = End(stream.messages[-1].time, "UNAVAILABLE", "ENGINE_DEAD")


def be_refused_in_the_middle(stream: StreamRecord) -> None:
    stream.end = End(stream.messages[-1].time, REFUSED, "ENGINE_NOT_READY")


def never_end(stream: StreamRecord) -> None:
    stream.end = None


@pytest.mark.parametrize(
    ("plant", "wrong"),
    [
        (lose_a_message, Wrong.LOST),
        (lose_the_last, Wrong.LOST),
        (lose_a_sequence, Wrong.LOST),
        (repeat_a_message, Wrong.REPEATED),
        (repeat_a_token, Wrong.REPEATED),
        (change_a_token, Wrong.CHANGED),
        (swap_two_messages, Wrong.LOST),
        (change_the_text, Wrong.CHANGED),
        (lose_text, Wrong.CHANGED),
        (change_a_score, Wrong.CHANGED),
        (change_a_candidate, Wrong.CHANGED),
        (change_the_finish, Wrong.CHANGED),
        (forget_the_finish, Wrong.CHANGED),
        (count_wrongly, Wrong.CHANGED),
        (change_the_seed, Wrong.CHANGED),
        (forget_scores_of_the_prompt, Wrong.CHANGED),
        (come_after_the_finish, Wrong.LATE),
        (come_after_the_status, Wrong.LATE),
        (fail, Wrong.FAILED),
        (be_refused_in_the_middle, Wrong.FAILED),
        (never_end, Wrong.UNFINISHED),
    ],
)
def test_a_planted_fault_is_found(
    history: History, plant: Callable[[StreamRecord], None], wrong: Wrong
) -> None:
    plant(history.streams[1])
    findings = check(history)
    assert wrong in {finding.wrong for finding in findings}
    assert {finding.stream for finding in findings} == {1}
    assert tally(findings)[wrong] == 1


def test_a_fault_of_the_twin_is_found(history: History):
    repeat_a_message(history.streams[0])
    assert Wrong.REPEATED in {finding.wrong for finding in check(history) if finding.stream == 0}


def test_a_model_may_round_differently(history: History):
    """Its log-probabilities are compared within a tolerance; its tokens are not."""
    change_a_score(history.streams[1])
    history.begin["tolerance"] = 1e-3
    assert check(history) == []
    change_a_token(history.streams[1])
    assert tally(check(history))["changed"] == 1


def test_what_was_refused_before_it_began_is_not_judged(history: History):
    history.streams[2] = StreamRecord(2, 0, 5, attempts=[5], end=End(6, REFUSED, "ENGINE_NOT_READY"))
    assert check(history) == [] and history.num_refused == 1


def test_a_history_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path):
    writer = Writer(tmp_path / "history", seed=1, tolerance=0.0)
    writer.case(0, name="two", streams=True)
    make_stream(writer, 0, twin=True, chunks=[6])
    writer.close()
    text = (tmp_path / "history").read_text()
    (tmp_path / "history").write_text(text[: text.rindex('"end"')])
    assert read(tmp_path / "history").streams[0].end is None
    (tmp_path / "history").write_text("")
    with pytest.raises(ValueError, match="no history"):
        read(tmp_path / "history")
