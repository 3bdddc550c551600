"""The frontend's state of one sequence: its tokens, its text, and how it ended."""

from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import cast

from frontend.answers.answer import Answer
from frontend.answers.events import BREAK, SEPARATOR
from frontend.engine.logprobs import Scores
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import StopMatcher
from pagewire.v1 import generation_pb2

EOS = generation_pb2.FINISH_REASON_EOS
STOP = generation_pb2.FINISH_REASON_STOP
REPETITION = generation_pb2.FINISH_REASON_REPETITION


@dataclass(frozen=True, slots=True)
class OutputFields:
    """What a sequence's messages contain; the same for all sequences of a request."""

    text: bool = True
    token_ids: bool = False
    token_bytes: Callable[[int], bytes] | None = None
    cumulative: bool = False
    include_stop: bool = False
    min_tokens: int = 0
    logprobs: bool = False
    likelihood: bool = False
    """The sum of log-probabilities is needed, although they may not be requested themselves."""
    prompt_only: bool = False
    """Tokens are dropped: none was asked for."""

    @property
    def only_text(self) -> bool:
        """True when tokens without text need no message."""
        return self.text and not (self.token_ids or self.logprobs) and self.token_bytes is None


class RepetitionDetector:
    """Finds output that repeats itself: the same few tokens, several times in a row.

    The state is a function of the tokens, so a continued stream ends where the broken one would have. Costs
    max_ngram comparisons per token.
    """

    __slots__ = ("_count", "_min_tokens", "_recent", "_runs", "_num_tokens")

    def __init__(self, max_ngram: int, count: int, min_tokens: int = 0) -> None:
        """The output repeats itself when it ends with `count` equal n-grams, n from 1 to max_ngram.
        min_tokens: it may do so until it has more than these."""
        self._count = count
        self._min_tokens = min_tokens
        self._recent: list[int] = []  # the last max_ngram tokens, newest first
        self._runs = [0] * max_ngram  # how many of the last tokens equal the one n tokens before, by n - 1
        self._num_tokens = 0

    def push(self, token_ids: Items[int]) -> int | None:
        """Consumes tokens. Returns how many there are up to the one with which the output repeats itself;
        None: it does not."""
        for place, token in enumerate(token_ids):
            repeats = self._push(token)
            if repeats and self._num_tokens > self._min_tokens:
                return place + 1
        return None

    def _push(self, token: int) -> bool:
        repeats = False
        for place, before in enumerate(self._recent):
            run = self._runs[place] = self._runs[place] + 1 if before == token else 0
            repeats |= run >= (place + 1) * (self._count - 1)
        self._recent.insert(0, token)
        del self._recent[len(self._runs) :]
        self._num_tokens += 1
        return repeats


class Sequence:
    """One of the n sequences of a request.

    Without stop strings, tokens become text when a message is made: those that accumulate behind a slow
    client are decoded together. With stop strings they are decoded at once, because one may end the sequence.
    """

    __slots__ = (
        "index",
        "tokens",
        "finish",
        "dirty",
        "wants_scores",
        "_fields",
        "_is_plain",
        "_detokenizer",
        "_matcher",
        "_answer",
        "_repetition",
        "_pieces",
        "_history",
        "_num_decoded",
        "_num_sent",
        "_num_silent",
        "_scores",
        "_logprob",
    )

    def __init__(
        self,
        index: int,
        fields: OutputFields,
        detokenizer: Detokenizer | None = None,
        matcher: StopMatcher | None = None,
        echo: str = "",
        repetition: RepetitionDetector | None = None,
    ) -> None:
        """detokenizer: None when no text is needed; an Answer tells reasoning and calls apart. echo: text to
        begin with. repetition: ends a sequence that repeats itself."""
        self.index = index
        self.tokens: array[int] = array("I")
        self.finish: generation_pb2.Finish | None = None
        self.dirty = False  # set by the stream: something is new
        self.wants_scores = (fields.logprobs or fields.likelihood) and not fields.prompt_only
        """True when tokens must come with log-probabilities."""
        self._is_plain = repetition is None and matcher is None and not fields.prompt_only
        self._fields = fields
        self._detokenizer = detokenizer
        self._repetition = repetition
        self._answer = detokenizer if isinstance(detokenizer, Answer) else None
        self._matcher = matcher
        self._pieces = [echo] if echo else []  # text that no message has contained yet
        self._history = ""  # text of earlier messages, where messages are cumulative
        self._num_decoded = 0
        self._num_sent = 0
        self._num_silent = 0  # tokens at the end whose text is omitted: 0 or 1
        self._scores = Scores()  # of tokens not sent yet; of all tokens, where messages are cumulative
        self._logprob: float | None = 0.0 if self.wants_scores else None

    @property
    def num_scores(self) -> int:
        """Number of log-probabilities in the next message."""
        return len(self._scores) + len(self._scores.ids)

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of tokens in the reasoning, as far as they have been decoded."""
        return self._answer.num_reasoning_tokens if self._answer is not None else 0

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the tokens' log-probabilities; None: not requested, or not known for all tokens."""
        return self._logprob

    def accept(self, token_ids: Items[int], reason: int, matched: int, scores: Scores | None = None) -> bool:
        """Appends tokens, and the core's finish if reason is not 0 (matched: the token that matched).

        scores: of all these tokens, where log-probabilities are requested.

        Returns whether the sequence has ended. If so without a reason, a stop string matched, and the core
        does not know yet.
        """
        if self._is_plain and not reason and scores is None:  # as in most steps
            self.tokens.extend(token_ids)
            return False
        if self._fields.prompt_only:
            token_ids = ()
        before = len(self.tokens)
        ended = self._accept_until_repetition(token_ids, reason, matched)
        if scores is not None and self.wants_scores:
            self._add_scores(scores.cut(0, len(self.tokens) - before))
        return ended

    def _accept_until_repetition(self, token_ids: Items[int], reason: int, matched: int) -> bool:
        count = self._repetition.push(token_ids) if self._repetition is not None else None
        if count is None or (reason and count == len(token_ids)):
            return self._accept_tokens(token_ids, reason, matched)
        if not self._accept_tokens(token_ids[:count], 0, 0):
            self.finish = generation_pb2.Finish(reason=REPETITION)
            if self._matcher is not None:
                self._match_end(self._matcher)
        return True

    def _accept_tokens(self, token_ids: Items[int], reason: int, matched: int) -> bool:
        ends_by_token = reason in (EOS, STOP) and len(token_ids) > 0 and token_ids[-1] == matched
        if ends_by_token and not self._fields.include_stop:
            self._num_silent = 1
        if self._matcher is None:
            self.tokens.extend(token_ids)
        elif self._match_tokens(token_ids, self._matcher):
            return True
        if not reason:
            return False
        self.finish = generation_pb2.Finish(
            reason=cast(generation_pb2.FinishReason, reason),
            token_id=matched if reason in (EOS, STOP) else None,
        )
        if self._matcher is not None:
            self._match_end(self._matcher)
        return True

    def resume(self, token_ids: Items[int], reason: int, matched: int) -> bool:
        """Restores the first tokens of a sequence, which the client holds with all text that they decide.

        reason, matched: as in accept(). Returns whether they have ended the sequence, whose finish is then
        still to be sent. Raises ValueError when they continue after a stop string.
        """
        ended = self._accept_until_repetition(token_ids, reason, matched)
        if len(self.tokens) < len(token_ids):
            what = "completed a stop string"
            if self.finish is not None and self.finish.reason == REPETITION:
                what = "ended the sequence, which repeated itself"
            raise ValueError(f"go on after position {len(self.tokens) - 1}, which {what}")
        if token_ids and not self._fields.cumulative:
            self._take_text()
            self._num_sent = len(self.tokens)
            if self._answer is not None:
                self._answer.forget()
        elif token_ids and self._fields.logprobs:
            self._scores = Scores.unknown(len(token_ids))
        if token_ids:
            self._logprob = None
        return ended

    def put(self, response: generation_pb2.GenerateResponse) -> bool:
        """Adds what is new to a response. Returns False when that is nothing the client asked for."""
        text = self._take_text()
        num_new = len(self.tokens) - self._num_sent
        silent = self._answer is None or not self._answer.has_news
        if self.finish is None and not text and silent and (not num_new or self._fields.only_text):
            return False
        first = 0 if self._fields.cumulative else self._num_sent
        self._num_sent = len(self.tokens)
        if self._fields.cumulative:
            self._history += text
            text = self._history
        output = response.sequences.add(
            index=self.index,
            text=text,
            position=first,
            token_count=self._num_sent - first,
            token_ids=self.tokens[first:] if self._fields.token_ids else (),
            finish=self.finish,
        )
        if self._answer is not None:
            self._answer.put(output)
        if self._fields.logprobs:
            self._put_scores(output)
        if self._fields.token_bytes is not None:
            output.token_bytes.extend(map(self._fields.token_bytes, self.tokens[first:]))
        return True

    def _add_scores(self, scores: Scores) -> None:
        if self._fields.logprobs:
            self._scores.extend(scores)
        if self._logprob is not None:
            self._logprob += sum(scores.logprobs)

    def _put_scores(self, output: generation_pb2.SequenceOutput) -> None:
        if len(self._scores):
            self._scores.put(output.logprobs, self._fields.token_bytes)
        if not self._fields.cumulative:
            self._scores = Scores()
        if self.finish is not None and self._logprob is not None:
            output.finish.cumulative_logprob = self._logprob

    def _take_text(self) -> str:
        if self._matcher is None and self._detokenizer is not None:
            end = len(self.tokens) - self._num_silent
            if self._num_decoded < end:
                self._pieces.append(self._detokenizer.push(self.tokens[self._num_decoded : end]))
                self._num_decoded = end
            if self.finish is not None:
                self._pieces.append(self._detokenizer.flush())
        text = "".join(self._pieces)
        self._pieces.clear()
        return text.replace(BREAK, SEPARATOR) if self._answer is not None else text

    def _match_tokens(self, token_ids: Items[int], matcher: StopMatcher) -> bool:
        """Appends tokens one by one, up to the one that completes a stop string."""
        assert self._detokenizer is not None
        num_loud = len(token_ids) - self._num_silent
        for place, token in enumerate(token_ids):
            self.tokens.append(token)
            if place >= num_loud:
                continue
            if self._match(self._detokenizer.push((token,)) + matcher.mark(token), matcher):
                return True
        return False

    def _match_end(self, matcher: StopMatcher) -> None:
        """Decides the text that was held back, after the core has ended the sequence."""
        assert self._detokenizer is not None
        if not self._match(self._detokenizer.flush(), matcher):
            self._add(matcher.flush())

    def _match(self, piece: str, matcher: StopMatcher) -> bool:
        """Looks for stops in a piece of text; none reaches from one text into another."""
        *befores, last = piece.split(BREAK)
        for before in befores:
            if self._match_within(before, matcher):
                return True
            self._add(matcher.flush() + BREAK)
            matcher.restart()
        return self._match_within(last, matcher)

    def _match_within(self, piece: str, matcher: StopMatcher) -> bool:
        shown, stop = matcher.push(piece, armed=len(self.tokens) > self._fields.min_tokens)
        self._add(shown)
        if stop is None:
            return False
        self._num_silent = 0
        if matcher.by_regex:
            self.finish = generation_pb2.Finish(reason=STOP, stop_regex=stop)
        else:
            self.finish = generation_pb2.Finish(reason=STOP, stop=stop)
        return True

    def _add(self, piece: str) -> None:
        if piece and self._fields.text:
            self._pieces.append(piece)


def most_probable(sequences: Iterable[Sequence], n: int) -> list[Sequence]:
    """Returns the n sequences with the largest sums of log-probabilities, in descending order; ties in given
    order."""
    ranked = sorted(sequences, key=lambda sequence: -(sequence.cumulative_logprob or 0.0))
    return ranked[:n]
