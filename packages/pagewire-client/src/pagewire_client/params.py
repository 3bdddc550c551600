"""Converts prompts, SamplingParams and options to request messages. Pure functions.

Fields that are left out stay absent in the message: the server then uses the model's defaults. The server
validates the values; nothing is validated twice.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.message import Message as ProtobufMessage

from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2
from pagewire_client import audio, images
from pagewire_client.embeddings import FIELD, Precision, to_tensor
from pagewire_client.numbers import check_numbers
from pagewire_client.schemas import Parser, Schema, parser_of, structured_output
from pagewire_client.tools import ToolLike, to_choice, to_tool

M = TypeVar("M", bound=ProtobufMessage)
Message = Mapping[str, Any]
"""A chat message {"role": ..., "content": text or parts}, with any other fields of
pagewire.v1.ChatMessage. A part is text, an Image, an Audio, or an object as in OpenAI's API."""

PromptLike = str | Sequence[int] | Sequence[Message] | Mapping[str, Any] | prompt_pb2.Prompt
"""Text, token ids, a conversation, {"prompt": text or token ids, "images": list of Image, or "audio": list of
Audio}, {"prompt_embeds": tensor [n, E] of PyTorch or NumPy}, or a Prompt."""


Candidates = int | Sequence[int] | Literal["all"]
"""Tokens whose log-probabilities are returned besides the chosen one's: the top n, these ids, or the whole
vocabulary. 0: the chosen token only."""


@dataclasses.dataclass(frozen=True, slots=True)
class BeamSearch:
    """Beam search instead of sampling; the fields are those of pagewire.v1.BeamSearch.

    width: beams kept per step, at least n. length_penalty: values above 0 favour longer sequences; default 1.
    early_stopping: stop once `width` sequences have finished; default False.
    """

    width: int
    length_penalty: float | None = None
    early_stopping: bool | None = None

    def message(self) -> generation_pb2.BeamSearch:
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
    stop_regex: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool | None
    include_stop: bool | None
    time_limit: float | None
    repetition: tuple[int, int] | None
    text: bool | None
    skip_special_tokens: bool | None
    echo: bool
    logprobs: Candidates | None
    prompt_logprobs: Candidates | None
    prompt_logprobs_start: int | None
    schema: Schema | None
    json_object: bool
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    lark: str | None
    structural_tag: Mapping[str, Any] | str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample tokens, when to stop and what to return. None: the model's default.

    The fields are those of pagewire.v1.SamplingParams, StoppingCriteria (`time_limit` in seconds) and
    OutputOptions (`text`, `skip_special_tokens`, `echo` and the log-probabilities), with the same meaning.

    n: sequences to return. best_of: sequences to sample, of which the n most probable are returned.
    beam_search: BeamSearch(width), of which the n best sequences are returned. Both return all text at the
    end. repetition: (max_ngram, count), which ends output with so many equal n-grams in a row. logprobs,
    prompt_logprobs: candidates to return for each token: 0 for none, a number for the top n, a
    list of token ids, or "all"; None: no log-probabilities. Those of the prompt start at
    `prompt_logprobs_start`.

    At most one of these gives the output's form (docs/structured-output.md). schema: a pydantic model, a
    dataclass, or a JSON schema as a mapping or as text. json_object: any JSON object. regex: of the whole
    output. choice: one of these texts. grammar: in GBNF. lark: a grammar in Lark. structural_tag: a document,
    as a mapping or as text. `Generation.parsed` is the object that an output with a schema stands for.
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
    stop_regex: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    include_stop: bool | None = None
    time_limit: float | None = None
    repetition: tuple[int, int] | None = None
    text: bool | None = None
    skip_special_tokens: bool | None = None
    echo: bool = False
    logprobs: Candidates | None = None
    prompt_logprobs: Candidates | None = None
    prompt_logprobs_start: int | None = None
    schema: Schema | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    lark: str | None = None
    structural_tag: Mapping[str, Any] | str | None = None

    def sampling(self) -> generation_pb2.SamplingParams:
        """Returns the message with the sampling fields."""
        fields = self._fields_of(generation_pb2.SamplingParams)
        return generation_pb2.SamplingParams(**fields | {"beam_search": _beam_search(self.beam_search)})

    def stopping(self) -> generation_pb2.StoppingCriteria:
        """Returns the message with the stopping fields."""
        converted = {
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "stop_regex": [self.stop_regex] if isinstance(self.stop_regex, str) else self.stop_regex,
            "time_limit": None if self.time_limit is None else timedelta(seconds=self.time_limit),
            "repetition": _repetition(self.repetition),
        }
        fields = self._fields_of(generation_pb2.StoppingCriteria)
        return generation_pb2.StoppingCriteria(**fields | converted)

    def form(self) -> generation_pb2.StructuredOutput | None:
        """Returns the message with the output's form. Raises ValueError for more than one, and TypeError for
        what is no schema."""
        return structured_output(
            schema=self.schema,
            json_object=self.json_object,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            lark=self.lark,
            structural_tag=self.structural_tag,
        )

    def output(self) -> generation_pb2.OutputOptions:
        """Returns the message with the output fields; token ids are always requested."""
        converted = {
            "token_ids": True,
            "logprobs": _logprob_options(self.logprobs),
            "prompt_logprobs": _logprob_options(self.prompt_logprobs),
        }
        return generation_pb2.OutputOptions(**self._fields_of(generation_pb2.OutputOptions) | converted)

    def _fields_of(self, kind: type[ProtobufMessage]) -> dict[str, Any]:
        """Returns the values of the fields that a message has, too, by name."""
        names = kind.DESCRIPTOR.fields_by_name
        return {name: value for name, value in vars(self).items() if name in names}


class CommonOptions(TypedDict, total=False):
    """Options of every request that the model computes.

    request_id: unique among the requests in flight; default: chosen by the server.
    priority: lower values run first; 0 is the default class.
    tenant: unit of fair sharing; cached prefixes are shared within a tenant only.
    cache_salt: share cached prefixes with requests of the same salt only.
    cache_bypass: neither read nor write the prefix cache.
    """

    request_id: str
    priority: int
    tenant: str
    cache_salt: str
    cache_bypass: bool


class EmbedOptions(CommonOptions, total=False):
    """Options of embeddings.

    dimensions: leading elements to keep. normalize: scale to unit length; default: as the model has it.
    precision: see Precision. prompt_name: which prompt of the checkpoint precedes each text; "": none;
    default: the checkpoint's.
    """

    dimensions: int | None
    normalize: bool | None
    precision: Precision
    prompt_name: str | None


class RequestOptions(CommonOptions, total=False):
    """Options of a request that generates, besides prompt and sampling.

    model: served name; default: the client's.
    timings: return the time spent in each phase.
    parameters: return the parameters that the request runs with, those of the model and the server included.
    stream_interval: tokens of a message, at least, except in a sequence's last one; default: 1.
    session_id: requests with the same id go to the same engine, to reuse its prefix cache.
    data_parallel_rank: engine to use, while it serves.
    tools: functions, or other tools (pagewire_client.tools), that the model may call in a conversation.
    tool_choice: "auto", "none", "required", or the name of a tool.
    parallel_tool_calls: False: at most one call in an answer.
    enable_thinking: the chat template's switch; default: as the template has it.
    reasoning_budget: tokens of reasoning, at most; default: any number.
    max_draft_tokens: tokens that the server may draft per sequence and step; 0: none. Outputs are the same.
    """

    model: str
    timings: bool
    parameters: bool
    stream_interval: int
    session_id: str
    data_parallel_rank: int
    tools: Sequence[ToolLike]
    tool_choice: str
    parallel_tool_calls: bool
    enable_thinking: bool
    reasoning_budget: int
    max_draft_tokens: int


class GenerateOptions(SamplingOptions, RequestOptions, total=False):
    """All keyword arguments of generate(), stream() and chat()."""


_COMMON_OPTIONS = frozenset(CommonOptions.__annotations__)
_EMBED_OPTIONS = frozenset(EmbedOptions.__annotations__) - _COMMON_OPTIONS
_REQUEST_OPTIONS = frozenset(RequestOptions.__annotations__)
_CACHE_OPTIONS = ("cache_salt", "cache_bypass")
_CHAT_SWITCHES = ("parallel_tool_calls", "enable_thinking")
_CHAT_OPTIONS = ("tools", "tool_choice", *_CHAT_SWITCHES)
_ROUTING_OPTIONS = ("session_id", "data_parallel_rank")
_SPECULATION_OPTIONS = ("max_draft_tokens",)


def generate_request(
    prompt: PromptLike, params: SamplingParams | None, options: Mapping[str, Any], model: str
) -> generation_pb2.GenerateRequest:
    """Returns the request of generate(prompt, params, **options); options take precedence over params.

    model: used if the options name none. Raises TypeError for an unknown option or an unusable prompt, and
    ValueError for a number that is out of its field's range.
    """
    changes = {name: value for name, value in options.items() if name not in _REQUEST_OPTIONS}
    params = dataclasses.replace(params or SamplingParams(), **changes)
    try:
        return _request(prompt, params, options, model)
    except (TypeError, ValueError):
        check_numbers({**vars(params), **options})
        raise


def _request(
    prompt: PromptLike, params: SamplingParams, options: Mapping[str, Any], model: str
) -> generation_pb2.GenerateRequest:
    """Returns the request of complete params. See generate_request()."""
    output = params.output()
    output.timings, output.parameters = options.get("timings", False), options.get("parameters", False)
    if "stream_interval" in options:
        output.stream_interval = options["stream_interval"]
    routing = {name: options[name] for name in _ROUTING_OPTIONS if name in options}
    budget = options.get("reasoning_budget")
    drafts = {name: options[name] for name in _SPECULATION_OPTIONS if name in options}
    return generation_pb2.GenerateRequest(
        model=options.get("model", model),
        prompt=_with_tools(to_prompt(prompt), options),
        sampling=params.sampling(),
        stopping=params.stopping(),
        structured_output=params.form(),
        output=output,
        routing=generation_pb2.RoutingHints(**routing) if routing else None,
        speculation=generation_pb2.Speculation(**drafts) if drafts else None,
        reasoning=generation_pb2.ReasoningOptions(budget=budget) if budget is not None else None,
        **_common_fields(options),
    )


def pooling_request(message: Callable[..., M], model: str, options: CommonOptions, **fields: Any) -> M:
    """Returns a request of PoolingService. message: its type. fields: those that no other has.

    Raises TypeError for an unknown option.
    """
    for unknown in options.keys() - _COMMON_OPTIONS:
        raise TypeError(f"there is no option {unknown!r}")
    return message(model=model, **fields, **_common_fields(options))


def embed_request(
    inputs: Iterable[prompt_pb2.Prompt],
    kind: pooling_pb2.EmbeddingKind,
    model: str,
    options: EmbedOptions,
) -> pooling_pb2.EmbedRequest:
    """Returns the request for vectors of a kind. Raises TypeError for an unknown option."""
    own: dict[str, Any] = {name: value for name, value in options.items() if name in _EMBED_OPTIONS}
    common = {name: value for name, value in options.items() if name not in _EMBED_OPTIONS}
    precision = own.pop("precision", "float32")
    raw_dtype = "" if precision == "float32" else precision
    return pooling_request(
        pooling_pb2.EmbedRequest,
        model,
        cast(CommonOptions, common),
        inputs=inputs,
        kind=kind,
        raw_dtype=raw_dtype,
        **own,
    )


def _common_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request for CommonOptions."""
    fields = {name: options[name] for name in _COMMON_OPTIONS if name in options}
    cache = {name.removeprefix("cache_"): fields.pop(name) for name in _CACHE_OPTIONS if name in fields}
    return fields | {"cache": generation_pb2.CacheOptions(**cache)} if cache else fields


def _with_tools(prompt: prompt_pb2.Prompt, options: Mapping[str, Any]) -> prompt_pb2.Prompt:
    """Returns a prompt with the options of a conversation. Raises TypeError for another kind of prompt."""
    given = [name for name in _CHAT_OPTIONS if name in options]
    if not given:
        return prompt
    if not prompt.HasField("chat"):
        raise TypeError(f"{given[0]} is for a conversation: give the prompt as a list of messages")
    result = prompt_pb2.Prompt()
    result.CopyFrom(prompt)
    result.chat.tools.extend(map(to_tool, options.get("tools", ())))
    if "tool_choice" in options:
        result.chat.tool_choice.CopyFrom(to_choice(options["tool_choice"]))
    for name in _CHAT_SWITCHES:
        if name in options:
            setattr(result.chat, name, options[name])
    return result


def _repetition(limits: tuple[int, int] | None) -> generation_pb2.StoppingCriteria.Repetition | None:
    if limits is None:
        return None
    max_ngram, count = limits
    return generation_pb2.StoppingCriteria.Repetition(max_ngram=max_ngram, count=count)


def output_parser(params: SamplingParams | None, options: Mapping[str, Any]) -> Parser | None:
    """Returns what makes objects of the outputs of generate(prompt, params, **options); None: they are
    text."""
    schema = options.get("schema", params.schema if params is not None else None)
    if schema is not None:
        return parser_of(schema)
    is_object = options.get("json_object", params is not None and params.json_object)
    return parser_of({}) if is_object else None


def _beam_search(search: BeamSearch | None) -> generation_pb2.BeamSearch | None:
    """Raises TypeError for a bare width, which other libraries accept."""
    if search is None:
        return None
    if not isinstance(search, BeamSearch):
        raise TypeError(f"beam_search is a pagewire.BeamSearch, such as BeamSearch(4), not {search!r}")
    return search.message()


def _logprob_options(candidates: Candidates | None) -> generation_pb2.LogprobOptions | None:
    """Raises TypeError for a value that is not of type Candidates."""
    if candidates is None:
        return None
    if candidates == "all":
        return generation_pb2.LogprobOptions(all=True)
    if isinstance(candidates, str | bool):
        raise TypeError(
            "logprobs and prompt_logprobs take a number of candidates, a list of token ids, or 'all'"
        )
    if isinstance(candidates, int):
        return generation_pb2.LogprobOptions(top_n=candidates or None)
    return generation_pb2.LogprobOptions(token_ids=prompt_pb2.TokenIds(ids=candidates))


def to_prompt(prompt: PromptLike) -> prompt_pb2.Prompt:
    """Returns the message of a prompt. Raises TypeError for a value that is not of type PromptLike."""
    if isinstance(prompt, prompt_pb2.Prompt):
        return prompt
    if isinstance(prompt, str):
        return prompt_pb2.Prompt(text=prompt)
    if isinstance(prompt, bytes | bytearray | memoryview):  # sequences of int, too
        raise TypeError("a prompt is text, not bytes: decode it first")
    if isinstance(prompt, Mapping) and FIELD in prompt:
        return prompt_pb2.Prompt(embeddings=to_tensor(prompt))
    for field, of_field in ((images.FIELD, images.Image), (audio.FIELD, audio.Audio)):
        if isinstance(prompt, Mapping) and prompt.keys() == {images.PROMPT, field}:
            result = prompt_pb2.Prompt()
            result.CopyFrom(to_prompt(prompt[images.PROMPT]))
            result.media.extend(images.to_media(prompt[field], of_field))
            return result
    if isinstance(prompt, Sized) and not isinstance(prompt, Mapping):
        messages = [part for part in prompt if isinstance(part, Mapping)]
        token_ids = [part for part in prompt if isinstance(part, int)]
        if messages and not token_ids:
            return prompt_pb2.Prompt(chat=prompt_pb2.Chat(messages=[_message(part) for part in messages]))
        if len(token_ids) == len(prompt):
            return prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=token_ids))
    kind = type(prompt).__name__
    raise TypeError(f"a prompt is text, a list of token ids, or a list of messages, but this is a {kind}")


def prompts_of(prompts: PromptLike | Iterable[PromptLike]) -> list[PromptLike]:
    """Returns one prompt or several as a list: one is text, token ids, a Prompt, or what is refused later. A
    conversation counts as several, unless it is in a list of its own."""
    if isinstance(prompts, str | bytes | bytearray | Mapping | prompt_pb2.Prompt):
        return [cast(PromptLike, prompts)]
    if isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], int):
        return [cast(PromptLike, prompts)]
    return list(cast(Iterable[PromptLike], prompts))


def to_prompts(prompts: PromptLike | Iterable[PromptLike]) -> list[prompt_pb2.Prompt]:
    """Returns the messages of prompts_of(). Raises TypeError."""
    return [to_prompt(prompt) for prompt in prompts_of(prompts)]


def _message(message: Message) -> prompt_pb2.ChatMessage:
    fields = dict(message)
    content = fields.pop("content", None)
    result = json_format.ParseDict(fields, prompt_pb2.ChatMessage())
    if isinstance(content, str):
        result.content.add(text=content)
    else:
        for part in content or ():
            if (known := images.to_part(part)) is not None:
                result.content.append(known)
                continue
            # {"type": "text", "text": ...}, as in OpenAI's API.
            json_format.ParseDict({k: v for k, v in part.items() if k != "type"}, result.content.add())
    return result
