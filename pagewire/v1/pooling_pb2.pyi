from pagewire.v1 import generation_pb2 as _generation_pb2
from pagewire.v1 import prompt_pb2 as _prompt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbeddingKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMBEDDING_KIND_UNSPECIFIED: _ClassVar[EmbeddingKind]
    EMBEDDING_KIND_TOKENS: _ClassVar[EmbeddingKind]
    EMBEDDING_KIND_SPARSE: _ClassVar[EmbeddingKind]
EMBEDDING_KIND_UNSPECIFIED: EmbeddingKind
EMBEDDING_KIND_TOKENS: EmbeddingKind
EMBEDDING_KIND_SPARSE: EmbeddingKind

class EmbedRequest(_message.Message):
    __slots__ = ("request_id", "model", "inputs", "dimensions", "normalize", "raw_dtype", "adapter", "priority", "tenant", "cache", "prompt_name", "kind")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    RAW_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.Prompt]
    dimensions: int
    normalize: bool
    raw_dtype: str
    adapter: str
    priority: int
    tenant: str
    cache: _generation_pb2.CacheOptions
    prompt_name: str
    kind: EmbeddingKind
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_prompt_pb2.Prompt, _Mapping]]] = ..., dimensions: _Optional[int] = ..., normalize: _Optional[bool] = ..., raw_dtype: _Optional[str] = ..., adapter: _Optional[str] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., cache: _Optional[_Union[_generation_pb2.CacheOptions, _Mapping]] = ..., prompt_name: _Optional[str] = ..., kind: _Optional[_Union[EmbeddingKind, str]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embeddings", "usage")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    usage: _generation_pb2.Usage
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values", "raw", "truncated_tokens", "token_ids")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    raw: _prompt_pb2.Tensor
    truncated_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[float]] = ..., raw: _Optional[_Union[_prompt_pb2.Tensor, _Mapping]] = ..., truncated_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("request_id", "model", "query", "documents", "top_n", "priority", "tenant", "cache", "adapter", "instruction")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    query: _prompt_pb2.Prompt
    documents: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.Prompt]
    top_n: int
    priority: int
    tenant: str
    cache: _generation_pb2.CacheOptions
    adapter: str
    instruction: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., query: _Optional[_Union[_prompt_pb2.Prompt, _Mapping]] = ..., documents: _Optional[_Iterable[_Union[_prompt_pb2.Prompt, _Mapping]]] = ..., top_n: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., cache: _Optional[_Union[_generation_pb2.CacheOptions, _Mapping]] = ..., adapter: _Optional[str] = ..., instruction: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "usage")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[DocumentScore]
    usage: _generation_pb2.Usage
    def __init__(self, scores: _Optional[_Iterable[_Union[DocumentScore, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class DocumentScore(_message.Message):
    __slots__ = ("index", "score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("request_id", "model", "inputs", "priority", "tenant", "cache")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.Prompt]
    priority: int
    tenant: str
    cache: _generation_pb2.CacheOptions
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_prompt_pb2.Prompt, _Mapping]]] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., cache: _Optional[_Union[_generation_pb2.CacheOptions, _Mapping]] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("results", "labels", "usage")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Classification]
    labels: _containers.RepeatedScalarFieldContainer[str]
    usage: _generation_pb2.Usage
    def __init__(self, results: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., labels: _Optional[_Iterable[str]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("probabilities",)
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class ScoreContinuationsRequest(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "continuations", "token_logprobs", "priority", "tenant", "cache")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: _prompt_pb2.Prompt
    continuations: _containers.RepeatedScalarFieldContainer[str]
    token_logprobs: bool
    priority: int
    tenant: str
    cache: _generation_pb2.CacheOptions
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[_Union[_prompt_pb2.Prompt, _Mapping]] = ..., continuations: _Optional[_Iterable[str]] = ..., token_logprobs: _Optional[bool] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., cache: _Optional[_Union[_generation_pb2.CacheOptions, _Mapping]] = ...) -> None: ...

class ScoreContinuationsResponse(_message.Message):
    __slots__ = ("scores", "usage")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[ContinuationScore]
    usage: _generation_pb2.Usage
    def __init__(self, scores: _Optional[_Iterable[_Union[ContinuationScore, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class ContinuationScore(_message.Message):
    __slots__ = ("logprob", "tokens", "token_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    tokens: int
    token_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., tokens: _Optional[int] = ..., token_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...
