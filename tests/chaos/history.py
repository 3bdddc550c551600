"""What clients saw and what was killed: a file of JSON lines, written while it happens and judged afterwards.

Times are microseconds since the beginning, on one clock. A line is one of

    begin     what was started, with which seed, and how exact numbers have to be
    case      a request that streams make: prompt and parameters
    send      a stream begins; "twin": no kill disturbs it
    attempt   its request leaves the client: the first time, or again after a break
    message   what is new of one sequence
    end       its status, and what comes with the end
    strike    a process gets a signal; strikes with the same burst belong together
    calm      all streams have moved on since the last strike, and there are no more
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pagewire_client.results import Delta, Generation, TokenLogprob, ToolCall

OK = "OK"
REFUSED = "REFUSED"
"""Before anything of the stream was there: it may be asked for again, and is, as another stream."""

Score = tuple[float, int, tuple[tuple[int, float, int], ...]]
"""Log-probability, rank, and the candidates: id, log-probability, rank."""


@dataclass(slots=True)
class Message:
    """What is new of one sequence, as the client was given it."""

    time: int
    index: int
    position: int
    token_ids: list[int]
    text: str
    finish: str | None = None
    stop: str | int | None = None
    scores: list[Score] = field(default_factory=list)


@dataclass(slots=True)
class End:
    """How a stream was over."""

    time: int
    status: str
    reason: str = ""
    seed: int = 0
    usage: tuple[int, int] = (0, 0)
    """Tokens of the prompt, tokens of all outputs."""
    accepted: int = 0
    """Of these: tokens that were drafted."""
    prompt_scores: list[Score | None] = field(default_factory=list)


@dataclass(slots=True)
class StreamRecord:
    """All that a client saw of one request."""

    number: int
    case: int
    sent: int
    twin: bool = False
    attempts: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    end: End | None = None

    @property
    def was_refused(self) -> bool:
        """Whether it never was one."""
        return self.end is not None and self.end.status == REFUSED and not self.messages


@dataclass(frozen=True, slots=True)
class Strike:
    """A signal to a process."""

    time: int
    burst: int
    victim: str
    signal: str
    standby: bool = False
    """The process was a standby."""


@dataclass
class History:
    """A file, read."""

    begin: dict[str, Any] = field(default_factory=dict)
    cases: dict[int, dict[str, Any]] = field(default_factory=dict)
    streams: dict[int, StreamRecord] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)
    calm: int | None = None
    """When the last pause was over."""

    @property
    def twins(self) -> dict[int, StreamRecord]:
        """By case."""
        return {stream.case: stream for stream in self.streams.values() if stream.twin}

    @property
    def disturbed(self) -> list[StreamRecord]:
        """All others, but those that were refused."""
        return [stream for stream in self.streams.values() if not stream.twin and not stream.was_refused]

    @property
    def num_refused(self) -> int:
        """Of these."""
        return sum(stream.was_refused for stream in self.streams.values())

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that the disturbed streams have got."""
        return sum(stream.end.accepted for stream in self.disturbed if stream.end is not None)

    def is_streaming(self, stream: StreamRecord) -> bool:
        """Whether it gives tokens as they are made, not all at the end."""
        return bool(self.cases[stream.case]["streams"])


class Writer:
    """Writes a history. One per run, for one event loop."""

    def __init__(self, path: Path, **begin: Any) -> None:
        self.path = path
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._start = time.monotonic_ns()
        self._write(kind="begin", **begin)

    def close(self) -> None:
        """All of it is on disk."""
        self._file.close()

    def case(self, number: int, **what: Any) -> None:
        """Before the first stream that makes this request."""
        self._write(kind="case", case=number, **what)

    def send(self, stream: int, case: int, *, twin: bool) -> None:
        """A client is about to make the request."""
        self._write(kind="send", t=self._now(), stream=stream, case=case, twin=twin)

    def attempt(self, stream: int) -> None:
        """The request leaves."""
        self._write(kind="attempt", t=self._now(), stream=stream)

    def message(self, stream: int, delta: Delta) -> None:
        """The client was given this."""
        self._write(
            kind="message",
            t=self._now(),
            stream=stream,
            index=delta.index,
            position=delta.position,
            token_ids=delta.token_ids,
            text=delta.text + "".join(map(_call_text, delta.tool_calls)),
            finish=delta.finish_reason,
            stop=delta.stop,
            scores=[_score(score) for score in delta.logprobs],
        )

    def end(self, stream: int, status: str, reason: str, result: Generation) -> None:
        """The client was told that nothing more comes."""
        self._write(
            kind="end",
            t=self._now(),
            stream=stream,
            status=status,
            reason=reason,
            seed=result.seed,
            usage=[result.usage.prompt_tokens, result.usage.completion_tokens],
            accepted=result.usage.accepted_draft_tokens,
            prompt_scores=[score and _score(score) for score in result.prompt_logprobs],
        )

    def strike(self, burst: int, victim: str, signal: str, *, standby: bool = False) -> None:
        """The signal was sent."""
        what = {"victim": victim, "signal": signal, "standby": standby}
        self._write(kind="strike", t=self._now(), burst=burst, **what)

    def calm(self) -> None:
        """The killer has done its work."""
        self._write(kind="calm", t=self._now())

    def _now(self) -> int:
        return (time.monotonic_ns() - self._start) // 1000

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(path: Path) -> History:
    """Raises ValueError for a file that is none. One that breaks off has what was written."""
    history = History()
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                _take(history, json.loads(line))
    if not history.begin:
        raise ValueError(f"{path} is no history")
    return history


def _take(history: History, line: dict[str, Any]) -> None:
    kind, now = line.pop("kind"), line.pop("t", 0)
    if kind == "begin":
        history.begin = line
    elif kind == "case":
        history.cases[line.pop("case")] = line
    elif kind == "strike":
        history.strikes.append(Strike(now, **line))
    elif kind == "calm":
        history.calm = now
    elif kind == "send":
        number = line["stream"]
        history.streams[number] = StreamRecord(number, line["case"], now, line["twin"])
    else:
        stream = history.streams[line.pop("stream")]
        if kind == "attempt":
            stream.attempts.append(now)
        elif kind == "message":
            line["scores"] = [_read_score(score) for score in line["scores"]]
            stream.messages.append(Message(now, **line))
        else:
            line["prompt_scores"] = [score and _read_score(score) for score in line["prompt_scores"]]
            line["usage"] = tuple(line["usage"])
            stream.end = End(now, **line)


def _call_text(call: ToolCall) -> str:
    """Parts of calls count as text, of which the whole is the same wherever it was cut."""
    return (f"{call.id}|{call.name}|" if call.id else "") + call.arguments


def _score(score: TokenLogprob) -> Score:
    candidates = tuple((each.token_id, each.logprob, each.rank) for each in score.candidates)
    return score.logprob, score.rank, candidates


def _read_score(score: Sequence[Any]) -> Score:
    logprob, rank, candidates = score
    return logprob, rank, tuple((token, value, place) for token, value, place in candidates)
