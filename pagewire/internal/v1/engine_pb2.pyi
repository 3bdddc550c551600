import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from pagewire.v1 import admin_pb2 as _admin_pb2
from pagewire.v1 import generation_pb2 as _generation_pb2
from pagewire.v1 import inspection_pb2 as _inspection_pb2
from pagewire.v1 import prompt_pb2 as _prompt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CoreRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CORE_ROLE_UNSPECIFIED: _ClassVar[CoreRole]
    CORE_ROLE_PREFILL: _ClassVar[CoreRole]
    CORE_ROLE_DECODE: _ClassVar[CoreRole]

class MediaKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEDIA_KIND_UNSPECIFIED: _ClassVar[MediaKind]
    MEDIA_KIND_IMAGE: _ClassVar[MediaKind]
    MEDIA_KIND_AUDIO: _ClassVar[MediaKind]

class PoolingType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_TYPE_UNSPECIFIED: _ClassVar[PoolingType]
    POOLING_TYPE_LAST: _ClassVar[PoolingType]
    POOLING_TYPE_MEAN: _ClassVar[PoolingType]
    POOLING_TYPE_CLS: _ClassVar[PoolingType]
    POOLING_TYPE_MAX: _ClassVar[PoolingType]
    POOLING_TYPE_WEIGHTED_MEAN: _ClassVar[PoolingType]
    POOLING_TYPE_ALL: _ClassVar[PoolingType]

class DraftMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_METHOD_UNSPECIFIED: _ClassVar[DraftMethod]
    DRAFT_METHOD_LOOKUP: _ClassVar[DraftMethod]
    DRAFT_METHOD_GRAMMAR: _ClassVar[DraftMethod]
    DRAFT_METHOD_DRAFT: _ClassVar[DraftMethod]
    DRAFT_METHOD_SIMULATED: _ClassVar[DraftMethod]
    DRAFT_METHOD_SHARED: _ClassVar[DraftMethod]
    DRAFT_METHOD_HEADS: _ClassVar[DraftMethod]
CORE_ROLE_UNSPECIFIED: CoreRole
CORE_ROLE_PREFILL: CoreRole
CORE_ROLE_DECODE: CoreRole
MEDIA_KIND_UNSPECIFIED: MediaKind
MEDIA_KIND_IMAGE: MediaKind
MEDIA_KIND_AUDIO: MediaKind
POOLING_TYPE_UNSPECIFIED: PoolingType
POOLING_TYPE_LAST: PoolingType
POOLING_TYPE_MEAN: PoolingType
POOLING_TYPE_CLS: PoolingType
POOLING_TYPE_MAX: PoolingType
POOLING_TYPE_WEIGHTED_MEAN: PoolingType
POOLING_TYPE_ALL: PoolingType
DRAFT_METHOD_UNSPECIFIED: DraftMethod
DRAFT_METHOD_LOOKUP: DraftMethod
DRAFT_METHOD_GRAMMAR: DraftMethod
DRAFT_METHOD_DRAFT: DraftMethod
DRAFT_METHOD_SIMULATED: DraftMethod
DRAFT_METHOD_SHARED: DraftMethod
DRAFT_METHOD_HEADS: DraftMethod

class FrontendMessage(_message.Message):
    __slots__ = ("hello", "add_request", "abort", "utility", "watch_cache", "frontend_reply", "lease_blocks", "renew_lease", "end_lease", "known_adapters")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ADD_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    WATCH_CACHE_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_REPLY_FIELD_NUMBER: _ClassVar[int]
    LEASE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RENEW_LEASE_FIELD_NUMBER: _ClassVar[int]
    END_LEASE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    add_request: AddRequest
    abort: Abort
    utility: Utility
    watch_cache: WatchCache
    frontend_reply: FrontendReply
    lease_blocks: LeaseBlocks
    renew_lease: RenewLease
    end_lease: EndLease
    known_adapters: AdapterTable
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., add_request: _Optional[_Union[AddRequest, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., utility: _Optional[_Union[Utility, _Mapping]] = ..., watch_cache: _Optional[_Union[WatchCache, _Mapping]] = ..., frontend_reply: _Optional[_Union[FrontendReply, _Mapping]] = ..., lease_blocks: _Optional[_Union[LeaseBlocks, _Mapping]] = ..., renew_lease: _Optional[_Union[RenewLease, _Mapping]] = ..., end_lease: _Optional[_Union[EndLease, _Mapping]] = ..., known_adapters: _Optional[_Union[AdapterTable, _Mapping]] = ...) -> None: ...

class EngineMessage(_message.Message):
    __slots__ = ("welcome", "step_outputs", "request_failed", "load", "utility_result", "cache_changes", "frontend_command", "adapters", "leased_blocks", "lease_ended", "leaving")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FAILED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UTILITY_RESULT_FIELD_NUMBER: _ClassVar[int]
    CACHE_CHANGES_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_COMMAND_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    step_outputs: StepOutputs
    request_failed: RequestFailed
    load: Load
    utility_result: UtilityResult
    cache_changes: CacheChanges
    frontend_command: FrontendCommand
    adapters: AdapterTable
    leased_blocks: LeasedBlocks
    lease_ended: LeaseEnded
    leaving: Leaving
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., step_outputs: _Optional[_Union[StepOutputs, _Mapping]] = ..., request_failed: _Optional[_Union[RequestFailed, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., utility_result: _Optional[_Union[UtilityResult, _Mapping]] = ..., cache_changes: _Optional[_Union[CacheChanges, _Mapping]] = ..., frontend_command: _Optional[_Union[FrontendCommand, _Mapping]] = ..., adapters: _Optional[_Union[AdapterTable, _Mapping]] = ..., leased_blocks: _Optional[_Union[LeasedBlocks, _Mapping]] = ..., lease_ended: _Optional[_Union[LeaseEnded, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("frontend_id", "version", "known_epoch", "name", "address")
    FRONTEND_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    frontend_id: str
    version: str
    known_epoch: int
    name: str
    address: str
    def __init__(self, frontend_id: _Optional[str] = ..., version: _Optional[str] = ..., known_epoch: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class ModelFacts(_message.Message):
    __slots__ = ("architecture", "dtype", "vocab_size", "max_model_len", "eos_token_ids", "weight_bytes", "quantization", "kv_cache_dtype", "arithmetic", "exactness_caveat", "grammar_engine", "implementation", "embedding_size", "adapters_caveat", "max_adapters_per_step", "head_sizes", "input_embedding_size", "whole_prompts", "media_kinds", "whole_media")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_CAVEAT_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_ENGINE_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATION_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_CAVEAT_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZES_FIELD_NUMBER: _ClassVar[int]
    INPUT_EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_KINDS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_MEDIA_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    weight_bytes: int
    quantization: str
    kv_cache_dtype: str
    arithmetic: str
    exactness_caveat: str
    grammar_engine: str
    implementation: str
    embedding_size: int
    adapters_caveat: str
    max_adapters_per_step: int
    head_sizes: _containers.RepeatedScalarFieldContainer[int]
    input_embedding_size: int
    whole_prompts: bool
    media_kinds: _containers.RepeatedScalarFieldContainer[MediaKind]
    whole_media: bool
    def __init__(self, architecture: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., weight_bytes: _Optional[int] = ..., quantization: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., arithmetic: _Optional[str] = ..., exactness_caveat: _Optional[str] = ..., grammar_engine: _Optional[str] = ..., implementation: _Optional[str] = ..., embedding_size: _Optional[int] = ..., adapters_caveat: _Optional[str] = ..., max_adapters_per_step: _Optional[int] = ..., head_sizes: _Optional[_Iterable[int]] = ..., input_embedding_size: _Optional[int] = ..., whole_prompts: _Optional[bool] = ..., media_kinds: _Optional[_Iterable[_Union[MediaKind, str]]] = ..., whole_media: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "engine_version", "instance_id", "start_time", "model", "block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "device", "parallelism", "max_priority", "max_draft_tokens", "lora_folder", "adapters", "eos_origins", "transfer_namespace", "role")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LORA_FOLDER_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    EOS_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    engine_version: str
    instance_id: str
    start_time: _timestamp_pb2.Timestamp
    model: ModelFacts
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    parallelism: _admin_pb2.Parallelism
    max_priority: int
    max_draft_tokens: int
    lora_folder: str
    adapters: AdapterTable
    eos_origins: _containers.RepeatedScalarFieldContainer[str]
    transfer_namespace: bytes
    role: CoreRole
    def __init__(self, epoch: _Optional[int] = ..., engine_version: _Optional[str] = ..., instance_id: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., model: _Optional[_Union[ModelFacts, _Mapping]] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., device: _Optional[str] = ..., parallelism: _Optional[_Union[_admin_pb2.Parallelism, _Mapping]] = ..., max_priority: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., lora_folder: _Optional[str] = ..., adapters: _Optional[_Union[AdapterTable, _Mapping]] = ..., eos_origins: _Optional[_Iterable[str]] = ..., transfer_namespace: _Optional[bytes] = ..., role: _Optional[_Union[CoreRole, str]] = ...) -> None: ...

class AdapterTable(_message.Message):
    __slots__ = ("epoch", "adapters", "is_change", "unnamed", "held_digests", "dropped_digests")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    IS_CHANGE_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_FIELD_NUMBER: _ClassVar[int]
    HELD_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    adapters: _containers.RepeatedCompositeFieldContainer[NamedAdapter]
    is_change: bool
    unnamed: _containers.RepeatedScalarFieldContainer[str]
    held_digests: bytes
    dropped_digests: bytes
    def __init__(self, epoch: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[NamedAdapter, _Mapping]]] = ..., is_change: _Optional[bool] = ..., unnamed: _Optional[_Iterable[str]] = ..., held_digests: _Optional[bytes] = ..., dropped_digests: _Optional[bytes] = ...) -> None: ...

class NamedAdapter(_message.Message):
    __slots__ = ("name", "source", "digest", "rank", "bytes", "invocation_token_ids", "modules", "base", "pinned", "tenants", "loaded", "requests", "virtual_tokens", "former")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    digest: bytes
    rank: int
    bytes: int
    invocation_token_ids: _containers.RepeatedScalarFieldContainer[int]
    modules: _containers.RepeatedScalarFieldContainer[str]
    base: str
    pinned: bool
    tenants: _containers.RepeatedScalarFieldContainer[str]
    loaded: bool
    requests: int
    virtual_tokens: int
    former: _containers.RepeatedCompositeFieldContainer[NamedAdapter]
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., digest: _Optional[bytes] = ..., rank: _Optional[int] = ..., bytes: _Optional[int] = ..., invocation_token_ids: _Optional[_Iterable[int]] = ..., modules: _Optional[_Iterable[str]] = ..., base: _Optional[str] = ..., pinned: _Optional[bool] = ..., tenants: _Optional[_Iterable[str]] = ..., loaded: _Optional[bool] = ..., requests: _Optional[int] = ..., virtual_tokens: _Optional[int] = ..., former: _Optional[_Iterable[_Union[NamedAdapter, _Mapping]]] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("handle", "request_id", "prompt_token_ids", "sampling", "stopping", "bad_words", "delivered", "deadline", "tenant", "priority", "cache_salt", "cache_bypass", "ended_indexes", "logprobs", "prompt_logprobs", "prompt_logprobs_start", "tenant_terms", "traceparent", "tracestate", "again", "age_us", "group", "max_draft_tokens", "grammar", "content_digest", "pooling", "disconnect_grace_ms", "prompt_only", "adapter", "embeddings", "holder", "media")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYPASS_FIELD_NUMBER: _ClassVar[int]
    ENDED_INDEXES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    TENANT_TERMS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ONLY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    prompt_token_ids: bytes
    sampling: _generation_pb2.SamplingParams
    stopping: _generation_pb2.StoppingCriteria
    bad_words: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.TokenIds]
    delivered: _containers.RepeatedCompositeFieldContainer[Delivered]
    deadline: _duration_pb2.Duration
    tenant: str
    priority: int
    cache_salt: str
    cache_bypass: bool
    ended_indexes: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _generation_pb2.LogprobOptions
    prompt_logprobs: _generation_pb2.LogprobOptions
    prompt_logprobs_start: int
    tenant_terms: TenantTerms
    traceparent: str
    tracestate: str
    again: bool
    age_us: int
    group: str
    max_draft_tokens: int
    grammar: str
    content_digest: bytes
    pooling: Pooling
    disconnect_grace_ms: int
    prompt_only: bool
    adapter: AdapterRef
    embeddings: InputEmbeddings
    holder: str
    media: _containers.RepeatedCompositeFieldContainer[MediaItem]
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[_generation_pb2.StoppingCriteria, _Mapping]] = ..., bad_words: _Optional[_Iterable[_Union[_prompt_pb2.TokenIds, _Mapping]]] = ..., delivered: _Optional[_Iterable[_Union[Delivered, _Mapping]]] = ..., deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., cache_bypass: _Optional[bool] = ..., ended_indexes: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_generation_pb2.LogprobOptions, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_generation_pb2.LogprobOptions, _Mapping]] = ..., prompt_logprobs_start: _Optional[int] = ..., tenant_terms: _Optional[_Union[TenantTerms, _Mapping]] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., again: _Optional[bool] = ..., age_us: _Optional[int] = ..., group: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ..., grammar: _Optional[str] = ..., content_digest: _Optional[bytes] = ..., pooling: _Optional[_Union[Pooling, _Mapping]] = ..., disconnect_grace_ms: _Optional[int] = ..., prompt_only: _Optional[bool] = ..., adapter: _Optional[_Union[AdapterRef, _Mapping]] = ..., embeddings: _Optional[_Union[InputEmbeddings, _Mapping]] = ..., holder: _Optional[str] = ..., media: _Optional[_Iterable[_Union[MediaItem, _Mapping]]] = ...) -> None: ...

class MediaItem(_message.Message):
    __slots__ = ("kind", "shape", "data", "digest", "positions")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    kind: MediaKind
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    digest: bytes
    positions: bytes
    def __init__(self, kind: _Optional[_Union[MediaKind, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., positions: _Optional[bytes] = ...) -> None: ...

class AdapterRef(_message.Message):
    __slots__ = ("name", "source", "digest", "start", "virtual_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    digest: bytes
    start: int
    virtual_tokens: int
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., digest: _Optional[bytes] = ..., start: _Optional[int] = ..., virtual_tokens: _Optional[int] = ...) -> None: ...

class InputEmbeddings(_message.Message):
    __slots__ = ("dtype", "positions", "values")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    positions: bytes
    values: bytes
    def __init__(self, dtype: _Optional[str] = ..., positions: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class Pooling(_message.Message):
    __slots__ = ("type", "dimensions", "normalize", "head", "token_ids", "second_text")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SECOND_TEXT_FIELD_NUMBER: _ClassVar[int]
    type: PoolingType
    dimensions: int
    normalize: bool
    head: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    second_text: int
    def __init__(self, type: _Optional[_Union[PoolingType, str]] = ..., dimensions: _Optional[int] = ..., normalize: _Optional[bool] = ..., head: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., second_text: _Optional[int] = ...) -> None: ...

class TenantTerms(_message.Message):
    __slots__ = ("weight", "max_requests", "max_tokens_per_minute", "max_sequences")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    weight: float
    max_requests: int
    max_tokens_per_minute: int
    max_sequences: int
    def __init__(self, weight: _Optional[float] = ..., max_requests: _Optional[int] = ..., max_tokens_per_minute: _Optional[int] = ..., max_sequences: _Optional[int] = ...) -> None: ...

class LogprobColumns(_message.Message):
    __slots__ = ("logprobs", "ranks", "candidate_counts", "candidate_token_ids", "candidate_logprobs", "candidate_ranks")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_RANKS_FIELD_NUMBER: _ClassVar[int]
    logprobs: bytes
    ranks: bytes
    candidate_counts: bytes
    candidate_token_ids: bytes
    candidate_logprobs: bytes
    candidate_ranks: bytes
    def __init__(self, logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ..., candidate_counts: _Optional[bytes] = ..., candidate_token_ids: _Optional[bytes] = ..., candidate_logprobs: _Optional[bytes] = ..., candidate_ranks: _Optional[bytes] = ...) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("index", "token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: bytes
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class LeaseBlocks(_message.Message):
    __slots__ = ("lease", "contents")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    contents: bytes
    def __init__(self, lease: _Optional[int] = ..., contents: _Optional[bytes] = ...) -> None: ...

class LeasedBlocks(_message.Message):
    __slots__ = ("lease", "blocks", "address")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    blocks: bytes
    address: str
    def __init__(self, lease: _Optional[int] = ..., blocks: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...

class RenewLease(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    def __init__(self, lease: _Optional[int] = ...) -> None: ...

class EndLease(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    def __init__(self, lease: _Optional[int] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("lease", "stands")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    stands: bool
    def __init__(self, lease: _Optional[int] = ..., stands: _Optional[bool] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Abort(_message.Message):
    __slots__ = ("handle", "indexes", "detach")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    handle: int
    indexes: _containers.RepeatedScalarFieldContainer[int]
    detach: bool
    def __init__(self, handle: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ..., detach: _Optional[bool] = ...) -> None: ...

class Utility(_message.Message):
    __slots__ = ("call_id", "abort_by_ids", "get_load", "reset_cache", "list_requests", "explain_request", "get_kv_pool", "list_tenants", "list_frontends", "command_frontend", "find_request", "load_adapter", "unload_adapter", "list_adapters")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ABORT_BY_IDS_FIELD_NUMBER: _ClassVar[int]
    GET_LOAD_FIELD_NUMBER: _ClassVar[int]
    RESET_CACHE_FIELD_NUMBER: _ClassVar[int]
    LIST_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    GET_KV_POOL_FIELD_NUMBER: _ClassVar[int]
    LIST_TENANTS_FIELD_NUMBER: _ClassVar[int]
    LIST_FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FRONTEND_FIELD_NUMBER: _ClassVar[int]
    FIND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    LOAD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    LIST_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    abort_by_ids: AbortByIds
    get_load: GetLoad
    reset_cache: ResetCache
    list_requests: ListRequests
    explain_request: ExplainRequest
    get_kv_pool: _inspection_pb2.GetKvPoolRequest
    list_tenants: _inspection_pb2.ListTenantsRequest
    list_frontends: ListFrontends
    command_frontend: FrontendCommand
    find_request: FindRequest
    load_adapter: NamedAdapter
    unload_adapter: UnloadAdapter
    list_adapters: ListAdapters
    def __init__(self, call_id: _Optional[int] = ..., abort_by_ids: _Optional[_Union[AbortByIds, _Mapping]] = ..., get_load: _Optional[_Union[GetLoad, _Mapping]] = ..., reset_cache: _Optional[_Union[ResetCache, _Mapping]] = ..., list_requests: _Optional[_Union[ListRequests, _Mapping]] = ..., explain_request: _Optional[_Union[ExplainRequest, _Mapping]] = ..., get_kv_pool: _Optional[_Union[_inspection_pb2.GetKvPoolRequest, _Mapping]] = ..., list_tenants: _Optional[_Union[_inspection_pb2.ListTenantsRequest, _Mapping]] = ..., list_frontends: _Optional[_Union[ListFrontends, _Mapping]] = ..., command_frontend: _Optional[_Union[FrontendCommand, _Mapping]] = ..., find_request: _Optional[_Union[FindRequest, _Mapping]] = ..., load_adapter: _Optional[_Union[NamedAdapter, _Mapping]] = ..., unload_adapter: _Optional[_Union[UnloadAdapter, _Mapping]] = ..., list_adapters: _Optional[_Union[ListAdapters, _Mapping]] = ...) -> None: ...

class UnloadAdapter(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListAdapters(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdapterResult(_message.Message):
    __slots__ = ("adapter", "problem", "code", "reason", "field")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    adapter: NamedAdapter
    problem: str
    code: int
    reason: str
    field: str
    def __init__(self, adapter: _Optional[_Union[NamedAdapter, _Mapping]] = ..., problem: _Optional[str] = ..., code: _Optional[int] = ..., reason: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class ListFrontends(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FrontendCommand(_message.Message):
    __slots__ = ("frontend", "drain", "resume", "asker", "call_id")
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    frontend: bytes
    drain: _admin_pb2.DrainRequest
    resume: _admin_pb2.ResumeRequest
    asker: bytes
    call_id: int
    def __init__(self, frontend: _Optional[bytes] = ..., drain: _Optional[_Union[_admin_pb2.DrainRequest, _Mapping]] = ..., resume: _Optional[_Union[_admin_pb2.ResumeRequest, _Mapping]] = ..., asker: _Optional[bytes] = ..., call_id: _Optional[int] = ...) -> None: ...

class FrontendReply(_message.Message):
    __slots__ = ("asker", "call_id", "status")
    ASKER_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    asker: bytes
    call_id: int
    status: _admin_pb2.FrontendStatus
    def __init__(self, asker: _Optional[bytes] = ..., call_id: _Optional[int] = ..., status: _Optional[_Union[_admin_pb2.FrontendStatus, _Mapping]] = ...) -> None: ...

class FrontendList(_message.Message):
    __slots__ = ("frontends",)
    FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    frontends: _containers.RepeatedCompositeFieldContainer[_admin_pb2.FrontendStatus]
    def __init__(self, frontends: _Optional[_Iterable[_Union[_admin_pb2.FrontendStatus, _Mapping]]] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class FoundRequest(_message.Message):
    __slots__ = ("in_flight",)
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    in_flight: bool
    def __init__(self, in_flight: _Optional[bool] = ...) -> None: ...

class ListRequests(_message.Message):
    __slots__ = ("limit", "tenant", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    tenant: str
    after: ListPosition
    def __init__(self, limit: _Optional[int] = ..., tenant: _Optional[str] = ..., after: _Optional[_Union[ListPosition, _Mapping]] = ...) -> None: ...

class ListPosition(_message.Message):
    __slots__ = ("list", "tenant", "name", "number")
    LIST_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    list: str
    tenant: str
    name: str
    number: int
    def __init__(self, list: _Optional[str] = ..., tenant: _Optional[str] = ..., name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortByIds(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetLoad(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetCache(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UtilityResult(_message.Message):
    __slots__ = ("call_id", "aborted", "load", "cache_reset", "requests", "explanation", "kv_pool", "tenants", "frontends", "frontend_status", "found", "adapter", "adapters")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CACHE_RESET_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    KV_POOL_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_STATUS_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    aborted: AbortByIds
    load: Load
    cache_reset: ResetCache
    requests: _inspection_pb2.ListRequestsResponse
    explanation: _inspection_pb2.ExplainRequestResponse
    kv_pool: _inspection_pb2.KvPool
    tenants: _inspection_pb2.ListTenantsResponse
    frontends: FrontendList
    frontend_status: _admin_pb2.FrontendStatus
    found: FoundRequest
    adapter: AdapterResult
    adapters: AdapterTable
    def __init__(self, call_id: _Optional[int] = ..., aborted: _Optional[_Union[AbortByIds, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., cache_reset: _Optional[_Union[ResetCache, _Mapping]] = ..., requests: _Optional[_Union[_inspection_pb2.ListRequestsResponse, _Mapping]] = ..., explanation: _Optional[_Union[_inspection_pb2.ExplainRequestResponse, _Mapping]] = ..., kv_pool: _Optional[_Union[_inspection_pb2.KvPool, _Mapping]] = ..., tenants: _Optional[_Union[_inspection_pb2.ListTenantsResponse, _Mapping]] = ..., frontends: _Optional[_Union[FrontendList, _Mapping]] = ..., frontend_status: _Optional[_Union[_admin_pb2.FrontendStatus, _Mapping]] = ..., found: _Optional[_Union[FoundRequest, _Mapping]] = ..., adapter: _Optional[_Union[AdapterResult, _Mapping]] = ..., adapters: _Optional[_Union[AdapterTable, _Mapping]] = ...) -> None: ...

class WatchCache(_message.Message):
    __slots__ = ("watch", "ends")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    watch: int
    ends: bool
    def __init__(self, watch: _Optional[int] = ..., ends: _Optional[bool] = ...) -> None: ...

class CacheChanges(_message.Message):
    __slots__ = ("watch", "num_parts", "changes", "num_unknown_blocks")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NUM_UNKNOWN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    watch: int
    num_parts: int
    changes: _containers.RepeatedCompositeFieldContainer[CacheChange]
    num_unknown_blocks: int
    def __init__(self, watch: _Optional[int] = ..., num_parts: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[CacheChange, _Mapping]]] = ..., num_unknown_blocks: _Optional[int] = ...) -> None: ...

class CacheChange(_message.Message):
    __slots__ = ("stored", "removed_hashes", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_HASHES_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: CachedBlocks
    removed_hashes: bytes
    cleared: CacheCleared
    def __init__(self, stored: _Optional[_Union[CachedBlocks, _Mapping]] = ..., removed_hashes: _Optional[bytes] = ..., cleared: _Optional[_Union[CacheCleared, _Mapping]] = ...) -> None: ...

class CachedBlocks(_message.Message):
    __slots__ = ("tenant", "cache_salt", "parent_hash", "hashes", "token_ids", "adapter", "adapter_digest")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    cache_salt: str
    parent_hash: bytes
    hashes: bytes
    token_ids: bytes
    adapter: str
    adapter_digest: bytes
    def __init__(self, tenant: _Optional[str] = ..., cache_salt: _Optional[str] = ..., parent_hash: _Optional[bytes] = ..., hashes: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., adapter: _Optional[str] = ..., adapter_digest: _Optional[bytes] = ...) -> None: ...

class CacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StepOutputs(_message.Message):
    __slots__ = ("epoch", "step", "handles", "indexes", "positions", "counts", "token_ids", "finish_reasons", "finish_token_ids", "started_handles", "started_queue_us", "started_cached_tokens", "has_logprobs", "logprobs", "prompt_logprobs", "started_waits_us", "paused_handles", "paused_us", "draft_counts", "draft_methods", "vectors")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    FINISH_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    STARTED_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STARTED_WAITS_US_FIELD_NUMBER: _ClassVar[int]
    PAUSED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_METHODS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    handles: bytes
    indexes: bytes
    positions: bytes
    counts: bytes
    token_ids: bytes
    finish_reasons: bytes
    finish_token_ids: bytes
    started_handles: bytes
    started_queue_us: bytes
    started_cached_tokens: bytes
    has_logprobs: bytes
    logprobs: LogprobColumns
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    started_waits_us: bytes
    paused_handles: bytes
    paused_us: bytes
    draft_counts: bytes
    draft_methods: bytes
    vectors: _containers.RepeatedCompositeFieldContainer[RequestVector]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., handles: _Optional[bytes] = ..., indexes: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., finish_reasons: _Optional[bytes] = ..., finish_token_ids: _Optional[bytes] = ..., started_handles: _Optional[bytes] = ..., started_queue_us: _Optional[bytes] = ..., started_cached_tokens: _Optional[bytes] = ..., has_logprobs: _Optional[bytes] = ..., logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., started_waits_us: _Optional[bytes] = ..., paused_handles: _Optional[bytes] = ..., paused_us: _Optional[bytes] = ..., draft_counts: _Optional[bytes] = ..., draft_methods: _Optional[bytes] = ..., vectors: _Optional[_Iterable[_Union[RequestVector, _Mapping]]] = ...) -> None: ...

class RequestVector(_message.Message):
    __slots__ = ("handle", "values")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    values: bytes
    def __init__(self, handle: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("handle", "start", "columns")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    start: int
    columns: LogprobColumns
    def __init__(self, handle: _Optional[int] = ..., start: _Optional[int] = ..., columns: _Optional[_Union[LogprobColumns, _Mapping]] = ...) -> None: ...

class RequestFailed(_message.Message):
    __slots__ = ("epoch", "handle", "code", "reason", "message", "field", "retry_delay", "quota")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    handle: int
    code: int
    reason: str
    message: str
    field: str
    retry_delay: _duration_pb2.Duration
    quota: str
    def __init__(self, epoch: _Optional[int] = ..., handle: _Optional[int] = ..., code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., quota: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("epoch", "step", "load", "kv_sampled_slots", "kv_empty_slots")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    KV_SAMPLED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_EMPTY_SLOTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    load: _admin_pb2.RankLoad
    kv_sampled_slots: int
    kv_empty_slots: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., load: _Optional[_Union[_admin_pb2.RankLoad, _Mapping]] = ..., kv_sampled_slots: _Optional[int] = ..., kv_empty_slots: _Optional[int] = ...) -> None: ...
