"""What a caller writes, and the messages it becomes. Pure functions.

What is left out stays absent in the message: the server then takes the model's default. Nothing is
checked here that the server checks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from google.protobuf import json_format

from pagewire.v1 import generation_pb2, prompt_pb2

Message = Mapping[str, Any]
"""{"role": ..., "content": text or parts}, as chat templates have it; or with the other fields of
pagewire.v1.ChatMessage."""

PromptLike = str | Sequence[int] | Sequence[Message] | prompt_pb2.Prompt
"""Text, token ids, a conversation, or the message itself."""


Candidates = int | Sequence[int] | Literal["all"]
"""Which tokens are reported besides the chosen one: so many of the likeliest, these ids, or the whole
vocabulary. 0: none, only the chosen token."""


@dataclasses.dataclass(frozen=True, slots=True)
class BeamSearch:
    """Beam search instead of sampling; the fields are those of pagewire.v1.BeamSearch.

    width: beams kept per step, at least n. length_penalty: above 0 favours longer sequences; default 1.
    early_stopping: stop as soon as there are `width` finished sequences; default False.
    """

    width: int
    length_penalty: float | None = None
    early_stopping: bool | None = None

    def message(self) -> generation_pb2.BeamSearch:
        """As it is sent."""
        return generation_pb2.BeamSearch(
            width=self.width, length_penalty=self.length_penalty, early_stopping=self.early_stopping
        )


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams as keyword arguments."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    typical_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    n: int | None
    best_of: int | None
    beam_search: BeamSearch | None
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    bad_token_ids: Sequence[int]
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool | None
    include_stop: bool | None
    time_limit: float | None
    text: bool | None
    skip_special_tokens: bool | None
    echo: bool
    logprobs: Candidates | None
    prompt_logprobs: Candidates | None
    prompt_logprobs_start: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens, when to stop, what text to make. None: the model's default.

    The fields are those of pagewire.v1.SamplingParams and StoppingCriteria, and mean the same;
    `time_limit` is in seconds. `text`, `skip_special_tokens` and `echo` are of OutputOptions, and so are the
    log-probabilities: of the output, and of the prompt from `prompt_logprobs_start` on. None: not wanted.

    n: sequences to return. best_of: sequences to sample, of which the n likeliest are returned.
    beam_search: BeamSearch(width), of which the n best sequences are returned. Both deliver at the end.
    logprobs, prompt_logprobs: which candidates are reported beside each token: 0 for none, so many of the
    likeliest, a list of token ids, or "all".
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    beam_search: BeamSearch | None = None
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    bad_token_ids: Sequence[int] = ()
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    include_stop: bool | None = None
    time_limit: float | None = None
    text: bool | None = None
    skip_special_tokens: bool | None = None
    echo: bool = False
    logprobs: Candidates | None = None
    prompt_logprobs: Candidates | None = None
    prompt_logprobs_start: int | None = None

    def sampling(self) -> generation_pb2.SamplingParams:
        """The message that says how to choose tokens."""
        return generation_pb2.SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            typical_p=self.typical_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            n=self.n,
            best_of=self.best_of,
            beam_search=_beam_search(self.beam_search),
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            bad_words=self.bad_words,
            bad_token_ids=self.bad_token_ids,
        )

    def stopping(self) -> generation_pb2.StoppingCriteria:
        """The message that says when to stop."""
        limit = None if self.time_limit is None else timedelta(seconds=self.time_limit)
        return generation_pb2.StoppingCriteria(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            include_stop=self.include_stop,
            time_limit=limit,
        )

    def output(self) -> generation_pb2.OutputOptions:
        """The message that says what to return: token ids always."""
        return generation_pb2.OutputOptions(
            token_ids=True,
            text=self.text,
            skip_special_tokens=self.skip_special_tokens,
            echo=self.echo,
            logprobs=_logprob_options(self.logprobs),
            prompt_logprobs=_logprob_options(self.prompt_logprobs),
            prompt_logprobs_start=self.prompt_logprobs_start,
        )


class RequestOptions(TypedDict, total=False):
    """What a caller may say about a request besides prompt and sampling.

    request_id: unique among the requests in flight; default: the server makes one.
    model: served name; default: the client's.
    timings: return where the time went.
    priority: lower is sooner; 0 is the default class.
    tenant: who shares the engine fairly with others, and cached prefixes with nobody else.
    cache_salt: share cached prefixes only with requests of the same salt.
    cache_bypass: neither read nor write the prefix cache.
    session_id: requests with the same one go to the same engine, and find there what it has in its cache.
    data_parallel_rank: of the engine to go to, while it serves.
    """

    request_id: str
    model: str
    timings: bool
    priority: int
    tenant: str
    cache_salt: str
    cache_bypass: bool
    session_id: str
    data_parallel_rank: int


class GenerateOptions(SamplingOptions, RequestOptions, total=False):
    """All keyword arguments of generate(), stream() and chat()."""


_REQUEST_OPTIONS = frozenset(RequestOptions.__annotations__)
_CACHE_OPTIONS = ("cache_salt", "cache_bypass")
_ROUTING_OPTIONS = ("session_id", "data_parallel_rank")


def generate_request(
    prompt: PromptLike, params: SamplingParams | None, options: Mapping[str, Any], model: str
) -> generation_pb2.GenerateRequest:
    """The request of generate(prompt, params, **options); options win over params.

    model: of the client, where the options name none. Raises TypeError for an unknown option.
    """
    changes = {name: value for name, value in options.items() if name not in _REQUEST_OPTIONS}
    params = dataclasses.replace(params or SamplingParams(), **changes)
    output = params.output()
    output.timings = options.get("timings", False)
    cache = {name.removeprefix("cache_"): options[name] for name in _CACHE_OPTIONS if name in options}
    routing = {name: options[name] for name in _ROUTING_OPTIONS if name in options}
    return generation_pb2.GenerateRequest(
        request_id=options.get("request_id", ""),
        model=options.get("model", model),
        priority=options.get("priority", 0),
        tenant=options.get("tenant", ""),
        prompt=to_prompt(prompt),
        sampling=params.sampling(),
        stopping=params.stopping(),
        output=output,
        cache=generation_pb2.CacheOptions(**cache) if cache else None,
        routing=generation_pb2.RoutingHints(**routing) if routing else None,
    )


def _beam_search(search: BeamSearch | None) -> generation_pb2.BeamSearch | None:
    """Raises TypeError for a bare width, which other libraries take."""
    if search is None:
        return None
    if not isinstance(search, BeamSearch):
        raise TypeError(f"beam_search is a pagewire.BeamSearch, such as BeamSearch(4), not {search!r}")
    return search.message()


def _logprob_options(candidates: Candidates | None) -> generation_pb2.LogprobOptions | None:
    """Raises TypeError when it is none of Candidates."""
    if candidates is None:
        return None
    if candidates == "all":
        return generation_pb2.LogprobOptions(all=True)
    if isinstance(candidates, str | bool):
        raise TypeError(
            "log-probabilities are asked for by a number of candidates, by token ids, or by 'all'"
        )
    if isinstance(candidates, int):
        return generation_pb2.LogprobOptions(top_n=candidates or None)
    return generation_pb2.LogprobOptions(token_ids=prompt_pb2.TokenIds(ids=candidates))


def to_prompt(prompt: PromptLike) -> prompt_pb2.Prompt:
    """The message for a prompt. Raises TypeError when it is none of PromptLike."""
    if isinstance(prompt, prompt_pb2.Prompt):
        return prompt
    if isinstance(prompt, str):
        return prompt_pb2.Prompt(text=prompt)
    messages = [part for part in prompt if isinstance(part, Mapping)]
    token_ids = [part for part in prompt if isinstance(part, int)]
    if messages and not token_ids:
        return prompt_pb2.Prompt(chat=prompt_pb2.Chat(messages=[_message(part) for part in messages]))
    if len(token_ids) == len(prompt):
        return prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=token_ids))
    raise TypeError("a prompt is text, a list of token ids, or a list of messages")


def _message(message: Message) -> prompt_pb2.ChatMessage:
    fields = dict(message)
    content = fields.pop("content", None)
    result = json_format.ParseDict(fields, prompt_pb2.ChatMessage())
    if isinstance(content, str):
        result.content.add(text=content)
    else:
        for part in content or ():
            # {"type": "text", "text": ...} is what OpenAI's clients write.
            json_format.ParseDict({k: v for k, v in part.items() if k != "type"}, result.content.add())
    return result
