from pagewire.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_GENERATE: _ClassVar[Capability]
    CAPABILITY_CHAT: _ClassVar[Capability]
    CAPABILITY_TOOLS: _ClassVar[Capability]
    CAPABILITY_REASONING: _ClassVar[Capability]
    CAPABILITY_STRUCTURED_OUTPUT: _ClassVar[Capability]
    CAPABILITY_BEAM_SEARCH: _ClassVar[Capability]
    CAPABILITY_PROMPT_LOGPROBS: _ClassVar[Capability]
    CAPABILITY_PROMPT_EMBEDDINGS: _ClassVar[Capability]
    CAPABILITY_IMAGES: _ClassVar[Capability]
    CAPABILITY_ADAPTERS: _ClassVar[Capability]
    CAPABILITY_EMBED: _ClassVar[Capability]
    CAPABILITY_SCORE: _ClassVar[Capability]
    CAPABILITY_CLASSIFY: _ClassVar[Capability]
    CAPABILITY_AUDIO: _ClassVar[Capability]
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_GENERATE: Capability
CAPABILITY_CHAT: Capability
CAPABILITY_TOOLS: Capability
CAPABILITY_REASONING: Capability
CAPABILITY_STRUCTURED_OUTPUT: Capability
CAPABILITY_BEAM_SEARCH: Capability
CAPABILITY_PROMPT_LOGPROBS: Capability
CAPABILITY_PROMPT_EMBEDDINGS: Capability
CAPABILITY_IMAGES: Capability
CAPABILITY_ADAPTERS: Capability
CAPABILITY_EMBED: Capability
CAPABILITY_SCORE: Capability
CAPABILITY_CLASSIFY: Capability
CAPABILITY_AUDIO: Capability

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "aliases", "base", "source", "revision", "architecture", "dtype", "quantization", "kv_cache_dtype", "max_model_len", "vocab_size", "eos_token_ids", "bos_token_id", "pad_token_id", "capabilities", "ends", "default_sampling", "default_sampling_origins", "limits", "exactness", "implementation", "embedding_size", "embedding_texts", "images_caveat", "audio_caveat", "adapter")
    class DefaultSamplingOriginsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PAD_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATION_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TEXTS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_CAVEAT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_CAVEAT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    base: str
    source: str
    revision: str
    architecture: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    pad_token_id: int
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    ends: _containers.RepeatedCompositeFieldContainer[_generation_pb2.EndToken]
    default_sampling: _generation_pb2.SamplingParams
    default_sampling_origins: _containers.ScalarMap[str, str]
    limits: Limits
    exactness: Exactness
    implementation: str
    embedding_size: int
    embedding_texts: EmbeddingTexts
    images_caveat: str
    audio_caveat: str
    adapter: Adapter
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., base: _Optional[str] = ..., source: _Optional[str] = ..., revision: _Optional[str] = ..., architecture: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., pad_token_id: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., ends: _Optional[_Iterable[_Union[_generation_pb2.EndToken, _Mapping]]] = ..., default_sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., default_sampling_origins: _Optional[_Mapping[str, str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., exactness: _Optional[_Union[Exactness, _Mapping]] = ..., implementation: _Optional[str] = ..., embedding_size: _Optional[int] = ..., embedding_texts: _Optional[_Union[EmbeddingTexts, _Mapping]] = ..., images_caveat: _Optional[str] = ..., audio_caveat: _Optional[str] = ..., adapter: _Optional[_Union[Adapter, _Mapping]] = ...) -> None: ...

class EmbeddingTexts(_message.Message):
    __slots__ = ("prompts", "default_prompt_name", "max_seq_length")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.ScalarMap[str, str]
    default_prompt_name: str
    max_seq_length: int
    def __init__(self, prompts: _Optional[_Mapping[str, str]] = ..., default_prompt_name: _Optional[str] = ..., max_seq_length: _Optional[int] = ...) -> None: ...

class Exactness(_message.Message):
    __slots__ = ("bitwise", "reason", "arithmetic")
    BITWISE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    bitwise: bool
    reason: str
    arithmetic: str
    def __init__(self, bitwise: _Optional[bool] = ..., reason: _Optional[str] = ..., arithmetic: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_sequences", "max_logprobs", "max_stop_strings", "max_request_bytes", "max_priority", "max_tenant_bytes", "max_beam_stop_tokens", "max_continuations", "max_continuation_bytes", "max_prompt_candidates", "max_length_penalty", "max_bad_words", "max_string_bytes", "max_output_values", "max_draft_tokens", "max_grammar_bytes", "max_choices", "max_stop_regexes", "max_bad_word_tokens", "max_logit_bias", "max_token_ids", "max_media", "max_media_pixels", "max_fetched_bytes", "max_media_seconds")
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BEAM_STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTINUATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_STRING_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_GRAMMAR_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_REGEXES_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MEDIA_FIELD_NUMBER: _ClassVar[int]
    MAX_MEDIA_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MEDIA_SECONDS_FIELD_NUMBER: _ClassVar[int]
    max_sequences: int
    max_logprobs: int
    max_stop_strings: int
    max_request_bytes: int
    max_priority: int
    max_tenant_bytes: int
    max_beam_stop_tokens: int
    max_continuations: int
    max_continuation_bytes: int
    max_prompt_candidates: int
    max_length_penalty: float
    max_bad_words: int
    max_string_bytes: int
    max_output_values: int
    max_draft_tokens: int
    max_grammar_bytes: int
    max_choices: int
    max_stop_regexes: int
    max_bad_word_tokens: int
    max_logit_bias: int
    max_token_ids: int
    max_media: int
    max_media_pixels: int
    max_fetched_bytes: int
    max_media_seconds: int
    def __init__(self, max_sequences: _Optional[int] = ..., max_logprobs: _Optional[int] = ..., max_stop_strings: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_priority: _Optional[int] = ..., max_tenant_bytes: _Optional[int] = ..., max_beam_stop_tokens: _Optional[int] = ..., max_continuations: _Optional[int] = ..., max_continuation_bytes: _Optional[int] = ..., max_prompt_candidates: _Optional[int] = ..., max_length_penalty: _Optional[float] = ..., max_bad_words: _Optional[int] = ..., max_string_bytes: _Optional[int] = ..., max_output_values: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., max_grammar_bytes: _Optional[int] = ..., max_choices: _Optional[int] = ..., max_stop_regexes: _Optional[int] = ..., max_bad_word_tokens: _Optional[int] = ..., max_logit_bias: _Optional[int] = ..., max_token_ids: _Optional[int] = ..., max_media: _Optional[int] = ..., max_media_pixels: _Optional[int] = ..., max_fetched_bytes: _Optional[int] = ..., max_media_seconds: _Optional[int] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "source", "pinned", "tenants")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    pinned: bool
    tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., pinned: _Optional[bool] = ..., tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: Model
    def __init__(self, adapter: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "source", "digest", "rank", "bytes", "modules", "trained_on", "invocation_token_ids", "pinned", "tenants", "loaded", "streams", "virtual_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    TRAINED_ON_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    digest: bytes
    rank: int
    bytes: int
    modules: _containers.RepeatedScalarFieldContainer[str]
    trained_on: str
    invocation_token_ids: _containers.RepeatedScalarFieldContainer[int]
    pinned: bool
    tenants: _containers.RepeatedScalarFieldContainer[str]
    loaded: bool
    streams: int
    virtual_tokens: int
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., digest: _Optional[bytes] = ..., rank: _Optional[int] = ..., bytes: _Optional[int] = ..., modules: _Optional[_Iterable[str]] = ..., trained_on: _Optional[str] = ..., invocation_token_ids: _Optional[_Iterable[int]] = ..., pinned: _Optional[bool] = ..., tenants: _Optional[_Iterable[str]] = ..., loaded: _Optional[bool] = ..., streams: _Optional[int] = ..., virtual_tokens: _Optional[int] = ...) -> None: ...
