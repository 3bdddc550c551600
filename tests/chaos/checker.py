"""Compares each stream of a history with the same request, undisturbed. No I/O, no clock.

What a client may rely on is that positions go on where they were, and that everything equals the undisturbed
stream: ids, text, log-probabilities, how it ended, and what was counted. Whatever does not is a finding.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import zip_longest
from math import isclose

from tests.chaos.history import OK, History, Message, Score, StreamRecord


class Wrong(StrEnum):
    """What can be wrong with a stream."""

    LOST = "lost"  # a position is missing, or the end of the output
    REPEATED = "repeated"  # a position came twice
    CHANGED = "changed"  # anything differs from the twin
    LATE = "late"  # something came after the end
    FAILED = "failed"  # a status that is not OK
    UNFINISHED = "unfinished"  # no status at all


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    wrong: Wrong
    stream: int
    text: str

    def __str__(self) -> str:
        return f"stream {self.stream}: {self.wrong}: {self.text}"


@dataclass
class Held:
    """A sequence as the client has it."""

    token_ids: list[int]
    text: str
    scores: list[Score]
    finish: str | None = None
    stop: str | int | None = None


def check(history: History) -> list[Finding]:
    """Everything that is wrong. Empty: every promise was kept."""
    findings: list[Finding] = []
    twins = history.twins
    tolerance = float(history.begin["tolerance"])
    for twin in twins.values():
        findings += _check_alone(twin)
    expected = {case: hold(twin) for case, twin in twins.items()}
    for stream in history.disturbed:
        alone = list(_check_alone(stream))
        findings += alone
        if not any(finding.wrong in (Wrong.FAILED, Wrong.UNFINISHED) for finding in alone):
            findings += _compare(stream, twins[stream.case], expected[stream.case], tolerance)
    return findings


def tally(findings: list[Finding]) -> dict[str, int]:
    """Streams with each kind of finding; all kinds are named."""
    streams = Counter(wrong for wrong, _ in {(finding.wrong, finding.stream) for finding in findings})
    return {wrong.value: streams[wrong] for wrong in Wrong}


def _check_alone(stream: StreamRecord) -> Iterator[Finding]:
    """What needs no twin: order, positions, one end."""
    held: Counter[int] = Counter()
    ended: set[int] = set()
    last = stream.sent
    for message in stream.messages:
        index, place = message.index, f"sequence {message.index}, position {message.position}"
        if message.time < last:
            yield Finding(Wrong.CHANGED, stream.number, f"{place}: it came before its predecessor")
        last = message.time
        if index in ended:
            yield Finding(Wrong.LATE, stream.number, f"{place}: after the end of the sequence")
        if stream.end is not None and message.time > stream.end.time:
            yield Finding(Wrong.LATE, stream.number, f"{place}: after the status")
        if message.position > held[index]:
            yield Finding(Wrong.LOST, stream.number, f"{place}, and the client holds {held[index]}")
        elif message.position < held[index]:
            yield Finding(Wrong.REPEATED, stream.number, f"{place}, and the client holds {held[index]}")
        held[index] += len(message.token_ids)
        if message.finish is not None:
            ended.add(index)
    if stream.end is None:
        yield Finding(Wrong.UNFINISHED, stream.number, f"{sum(held.values())} tokens, and no status")
    elif stream.end.status != OK:
        yield Finding(Wrong.FAILED, stream.number, f"{stream.end.status} {stream.end.reason}".rstrip())


def hold(stream: StreamRecord) -> dict[int, Held]:
    """All sequences, joined."""
    sequences: dict[int, Held] = {}
    for message in stream.messages:
        _append(sequences.setdefault(message.index, Held([], "", [])), message)
    return sequences


def _append(held: Held, message: Message) -> None:
    held.token_ids += message.token_ids
    held.text += message.text
    held.scores += message.scores
    if message.finish is not None:
        held.finish, held.stop = message.finish, message.stop


def _compare(
    stream: StreamRecord, twin: StreamRecord, expected: dict[int, Held], tolerance: float
) -> Iterator[Finding]:
    """Against the twin."""
    found = hold(stream)
    assert stream.end is not None and twin.end is not None
    for index in sorted(found.keys() | expected.keys()):
        here, there = found.get(index), expected.get(index)
        if here is None or there is None:
            wrong = Wrong.LOST if here is None else Wrong.CHANGED
            yield Finding(wrong, stream.number, f"sequence {index} is there only once")
        else:
            for wrong, what in _differences(here, there, tolerance):
                yield Finding(wrong, stream.number, f"sequence {index}: {what}")
    for name in ("seed", "usage"):
        here_value, there_value = getattr(stream.end, name), getattr(twin.end, name)
        if here_value != there_value:
            yield Finding(Wrong.CHANGED, stream.number, f"{name} is {here_value}, not {there_value}")
    if not _close(stream.end.prompt_scores, twin.end.prompt_scores, tolerance):
        yield Finding(Wrong.CHANGED, stream.number, "log-probabilities of the prompt")


def _differences(here: Held, there: Held, tolerance: float) -> Iterator[tuple[Wrong, str]]:
    pairs = zip(here.token_ids, there.token_ids, strict=False)
    changed = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
    if changed is not None:
        yield Wrong.CHANGED, f"token {changed} is {here.token_ids[changed]}, not {there.token_ids[changed]}"
    if len(here.token_ids) < len(there.token_ids):
        yield Wrong.LOST, f"{len(here.token_ids)} tokens of {len(there.token_ids)}"
    elif len(here.token_ids) > len(there.token_ids):
        yield Wrong.CHANGED, f"{len(here.token_ids)} tokens instead of {len(there.token_ids)}"
    if here.text != there.text:
        place = next(
            place for place, (one, other) in enumerate(zip_longest(here.text, there.text)) if one != other
        )
        yield Wrong.CHANGED, f"the text differs from character {place} on"
    if (here.finish, here.stop) != (there.finish, there.stop):
        yield Wrong.CHANGED, f"it ended by {here.finish} {here.stop}, not {there.finish} {there.stop}"
    if not _close(here.scores, there.scores, tolerance):
        yield Wrong.CHANGED, "log-probabilities"


def _close(here: Sequence[Score | None], there: Sequence[Score | None], by: float) -> bool:
    """Equal, or in a model's case as near as another order of its sums leaves them."""
    if len(here) != len(there):
        return False
    return all(
        one == other or (one is not None and other is not None and by > 0 and _near(one, other, by))
        for one, other in zip(here, there, strict=True)
    )


def _near(one: Score, other: Score, by: float) -> bool:
    """Ranks of what is equally likely may change places; how likely it is may not."""
    here, there = ([score[0], *(candidate[1] for candidate in score[2])] for score in (one, other))
    return len(here) == len(there) and all(map(partial(isclose, abs_tol=by), here, there))
