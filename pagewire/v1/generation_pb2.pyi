import datetime

from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from pagewire.v1 import prompt_pb2 as _prompt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_MAX_TOKENS: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TIME_LIMIT: _ClassVar[FinishReason]
    FINISH_REASON_ABORTED: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_REPETITION: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_MAX_TOKENS: FinishReason
FINISH_REASON_CONTEXT_LENGTH: FinishReason
FINISH_REASON_TIME_LIMIT: FinishReason
FINISH_REASON_ABORTED: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_REPETITION: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "sampling", "stopping", "structured_output", "output", "adapter", "priority", "cache", "routing", "continuation", "tenant", "extensions", "speculation", "reasoning")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: _prompt_pb2.Prompt
    sampling: SamplingParams
    stopping: StoppingCriteria
    structured_output: StructuredOutput
    output: OutputOptions
    adapter: str
    priority: int
    cache: CacheOptions
    routing: RoutingHints
    continuation: Continuation
    tenant: str
    extensions: _struct_pb2.Struct
    speculation: Speculation
    reasoning: ReasoningOptions
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[_Union[_prompt_pb2.Prompt, _Mapping]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingCriteria, _Mapping]] = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., adapter: _Optional[str] = ..., priority: _Optional[int] = ..., cache: _Optional[_Union[CacheOptions, _Mapping]] = ..., routing: _Optional[_Union[RoutingHints, _Mapping]] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ..., tenant: _Optional[str] = ..., extensions: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., reasoning: _Optional[_Union[ReasoningOptions, _Mapping]] = ...) -> None: ...

class ReasoningOptions(_message.Message):
    __slots__ = ("budget",)
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    budget: int
    def __init__(self, budget: _Optional[int] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("max_draft_tokens",)
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_draft_tokens: int
    def __init__(self, max_draft_tokens: _Optional[int] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("sequences", "adapter_digest", "media_digests")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEDIA_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[DeliveredSequence]
    adapter_digest: bytes
    media_digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sequences: _Optional[_Iterable[_Union[DeliveredSequence, _Mapping]]] = ..., adapter_digest: _Optional[bytes] = ..., media_digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DeliveredSequence(_message.Message):
    __slots__ = ("index", "token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "typical_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed", "n", "best_of", "beam_search", "logit_bias", "allowed_token_ids", "bad_words", "bad_token_ids")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    BAD_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    seed: int
    n: int
    best_of: int
    beam_search: BeamSearch
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    bad_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., n: _Optional[int] = ..., best_of: _Optional[int] = ..., beam_search: _Optional[_Union[BeamSearch, _Mapping]] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., bad_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class BeamSearch(_message.Message):
    __slots__ = ("width", "length_penalty", "early_stopping")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    width: int
    length_penalty: float
    early_stopping: bool
    def __init__(self, width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[bool] = ...) -> None: ...

class StoppingCriteria(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop", "time_limit", "repetition", "stop_regex")
    class Repetition(_message.Message):
        __slots__ = ("max_ngram", "count")
        MAX_NGRAM_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        max_ngram: int
        count: int
        def __init__(self, max_ngram: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    STOP_REGEX_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    include_stop: bool
    time_limit: _duration_pb2.Duration
    repetition: StoppingCriteria.Repetition
    stop_regex: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., include_stop: _Optional[bool] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., repetition: _Optional[_Union[StoppingCriteria.Repetition, _Mapping]] = ..., stop_regex: _Optional[_Iterable[str]] = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ("json_object", "json_schema", "regex", "choice", "grammar", "structural_tag", "backend")
    class Choices(_message.Message):
        __slots__ = ("values",)
        VALUES_FIELD_NUMBER: _ClassVar[int]
        values: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...
    class Grammar(_message.Message):
        __slots__ = ("text", "syntax")
        class Syntax(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            SYNTAX_UNSPECIFIED: _ClassVar[StructuredOutput.Grammar.Syntax]
            SYNTAX_EBNF: _ClassVar[StructuredOutput.Grammar.Syntax]
            SYNTAX_LARK: _ClassVar[StructuredOutput.Grammar.Syntax]
        SYNTAX_UNSPECIFIED: StructuredOutput.Grammar.Syntax
        SYNTAX_EBNF: StructuredOutput.Grammar.Syntax
        SYNTAX_LARK: StructuredOutput.Grammar.Syntax
        TEXT_FIELD_NUMBER: _ClassVar[int]
        SYNTAX_FIELD_NUMBER: _ClassVar[int]
        text: str
        syntax: StructuredOutput.Grammar.Syntax
        def __init__(self, text: _Optional[str] = ..., syntax: _Optional[_Union[StructuredOutput.Grammar.Syntax, str]] = ...) -> None: ...
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    json_object: bool
    json_schema: str
    regex: str
    choice: StructuredOutput.Choices
    grammar: StructuredOutput.Grammar
    structural_tag: str
    backend: str
    def __init__(self, json_object: _Optional[bool] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[StructuredOutput.Choices, _Mapping]] = ..., grammar: _Optional[_Union[StructuredOutput.Grammar, _Mapping]] = ..., structural_tag: _Optional[str] = ..., backend: _Optional[str] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("mode", "text", "token_ids", "logprobs", "prompt_token_ids", "prompt_logprobs", "echo", "skip_special_tokens", "stream_interval", "continuous_usage", "timings", "token_bytes", "prompt_logprobs_start", "parameters")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[OutputOptions.Mode]
        MODE_DELTA: _ClassVar[OutputOptions.Mode]
        MODE_CUMULATIVE: _ClassVar[OutputOptions.Mode]
        MODE_FINAL: _ClassVar[OutputOptions.Mode]
    MODE_UNSPECIFIED: OutputOptions.Mode
    MODE_DELTA: OutputOptions.Mode
    MODE_CUMULATIVE: OutputOptions.Mode
    MODE_FINAL: OutputOptions.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    mode: OutputOptions.Mode
    text: bool
    token_ids: bool
    logprobs: LogprobOptions
    prompt_token_ids: bool
    prompt_logprobs: LogprobOptions
    echo: bool
    skip_special_tokens: bool
    stream_interval: int
    continuous_usage: bool
    timings: bool
    token_bytes: bool
    prompt_logprobs_start: int
    parameters: bool
    def __init__(self, mode: _Optional[_Union[OutputOptions.Mode, str]] = ..., text: _Optional[bool] = ..., token_ids: _Optional[bool] = ..., logprobs: _Optional[_Union[LogprobOptions, _Mapping]] = ..., prompt_token_ids: _Optional[bool] = ..., prompt_logprobs: _Optional[_Union[LogprobOptions, _Mapping]] = ..., echo: _Optional[bool] = ..., skip_special_tokens: _Optional[bool] = ..., stream_interval: _Optional[int] = ..., continuous_usage: _Optional[bool] = ..., timings: _Optional[bool] = ..., token_bytes: _Optional[bool] = ..., prompt_logprobs_start: _Optional[int] = ..., parameters: _Optional[bool] = ...) -> None: ...

class LogprobOptions(_message.Message):
    __slots__ = ("top_n", "token_ids", "all")
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    top_n: int
    token_ids: _prompt_pb2.TokenIds
    all: bool
    def __init__(self, top_n: _Optional[int] = ..., token_ids: _Optional[_Union[_prompt_pb2.TokenIds, _Mapping]] = ..., all: _Optional[bool] = ...) -> None: ...

class CacheOptions(_message.Message):
    __slots__ = ("salt", "bypass")
    SALT_FIELD_NUMBER: _ClassVar[int]
    BYPASS_FIELD_NUMBER: _ClassVar[int]
    salt: str
    bypass: bool
    def __init__(self, salt: _Optional[str] = ..., bypass: _Optional[bool] = ...) -> None: ...

class RoutingHints(_message.Message):
    __slots__ = ("data_parallel_rank", "session_id")
    DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    data_parallel_rank: int
    session_id: str
    def __init__(self, data_parallel_rank: _Optional[int] = ..., session_id: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "prompt", "sequences", "usage", "timings", "model", "seed", "parameters", "adapter", "media_digests")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    MEDIA_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: PromptInfo
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceOutput]
    usage: Usage
    timings: Timings
    model: str
    seed: int
    parameters: EffectiveParameters
    adapter: AppliedAdapter
    media_digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[_Union[PromptInfo, _Mapping]] = ..., sequences: _Optional[_Iterable[_Union[SequenceOutput, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., model: _Optional[str] = ..., seed: _Optional[int] = ..., parameters: _Optional[_Union[EffectiveParameters, _Mapping]] = ..., adapter: _Optional[_Union[AppliedAdapter, _Mapping]] = ..., media_digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppliedAdapter(_message.Message):
    __slots__ = ("name", "digest", "start")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: bytes
    start: int
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[bytes] = ..., start: _Optional[int] = ...) -> None: ...

class EffectiveParameters(_message.Message):
    __slots__ = ("sampling", "stopping", "origins", "ends")
    class OriginsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    sampling: SamplingParams
    stopping: StoppingCriteria
    origins: _containers.ScalarMap[str, str]
    ends: _containers.RepeatedCompositeFieldContainer[EndToken]
    def __init__(self, sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingCriteria, _Mapping]] = ..., origins: _Optional[_Mapping[str, str]] = ..., ends: _Optional[_Iterable[_Union[EndToken, _Mapping]]] = ...) -> None: ...

class EndToken(_message.Message):
    __slots__ = ("token_id", "text", "origin")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    origin: str
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class SequenceOutput(_message.Message):
    __slots__ = ("index", "text", "token_ids", "logprobs", "finish", "reasoning", "tool_calls", "token_bytes", "position", "token_count")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: TokenLogprobs
    finish: Finish
    reasoning: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    position: int
    token_count: int
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[TokenLogprobs, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., reasoning: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ..., token_bytes: _Optional[_Iterable[bytes]] = ..., position: _Optional[int] = ..., token_count: _Optional[int] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "token_id", "stop", "stop_regex", "cumulative_logprob")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_REGEX_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    token_id: int
    stop: str
    stop_regex: str
    cumulative_logprob: float
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., token_id: _Optional[int] = ..., stop: _Optional[str] = ..., stop_regex: _Optional[str] = ..., cumulative_logprob: _Optional[float] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprobs", "ranks", "candidate_counts", "candidate_token_ids", "candidate_logprobs", "candidate_ranks", "candidate_bytes")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_RANKS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    candidate_counts: _containers.RepeatedScalarFieldContainer[int]
    candidate_token_ids: _containers.RepeatedScalarFieldContainer[int]
    candidate_logprobs: _containers.RepeatedScalarFieldContainer[float]
    candidate_ranks: _containers.RepeatedScalarFieldContainer[int]
    candidate_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., candidate_counts: _Optional[_Iterable[int]] = ..., candidate_token_ids: _Optional[_Iterable[int]] = ..., candidate_logprobs: _Optional[_Iterable[float]] = ..., candidate_ranks: _Optional[_Iterable[int]] = ..., candidate_bytes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PromptInfo(_message.Message):
    __slots__ = ("tokens", "cached_tokens", "token_ids", "logprobs", "token_bytes", "truncated_tokens")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    cached_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: TokenLogprobs
    token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    truncated_tokens: int
    def __init__(self, tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[TokenLogprobs, _Mapping]] = ..., token_bytes: _Optional[_Iterable[bytes]] = ..., truncated_tokens: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "reasoning_tokens", "draft_tokens", "accepted_draft_tokens", "drafters", "image_tokens", "audio_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    draft_tokens: int
    accepted_draft_tokens: int
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterUsage]
    image_tokens: int
    audio_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ..., drafters: _Optional[_Iterable[_Union[DrafterUsage, _Mapping]]] = ..., image_tokens: _Optional[int] = ..., audio_tokens: _Optional[int] = ...) -> None: ...

class DrafterUsage(_message.Message):
    __slots__ = ("drafter", "draft_tokens", "accepted_draft_tokens")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    drafter: str
    draft_tokens: int
    accepted_draft_tokens: int
    def __init__(self, drafter: _Optional[str] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("preprocess", "queue", "prefill", "decode", "total", "preempted", "waits")
    PREPROCESS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    preprocess: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    total: _duration_pb2.Duration
    preempted: _duration_pb2.Duration
    waits: Waits
    def __init__(self, preprocess: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., total: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., preempted: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., waits: _Optional[_Union[Waits, _Mapping]] = ...) -> None: ...

class Waits(_message.Message):
    __slots__ = ("queue", "rows", "blocks", "budget", "trial", "client", "adapter", "kv_transfer", "encoder")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    rows: _duration_pb2.Duration
    blocks: _duration_pb2.Duration
    budget: _duration_pb2.Duration
    trial: _duration_pb2.Duration
    client: _duration_pb2.Duration
    adapter: _duration_pb2.Duration
    kv_transfer: _duration_pb2.Duration
    encoder: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rows: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., blocks: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., budget: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., trial: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., client: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., adapter: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., kv_transfer: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., encoder: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GenerateMultiplexedRequest(_message.Message):
    __slots__ = ("generate", "abort")
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    generate: GenerateRequest
    abort: AbortRequest
    def __init__(self, generate: _Optional[_Union[GenerateRequest, _Mapping]] = ..., abort: _Optional[_Union[AbortRequest, _Mapping]] = ...) -> None: ...

class GenerateMultiplexedResponse(_message.Message):
    __slots__ = ("responses", "errors")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[GenerateResponse]
    errors: _containers.RepeatedCompositeFieldContainer[RequestError]
    def __init__(self, responses: _Optional[_Iterable[_Union[GenerateResponse, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[RequestError, _Mapping]]] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("request_id", "code", "message", "details")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_ids", "tenant")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    tenant: str
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., tenant: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted_request_ids",)
    ABORTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    aborted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, aborted_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...
