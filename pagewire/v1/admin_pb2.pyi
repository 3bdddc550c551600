import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from pagewire.v1 import inspection_pb2 as _inspection_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_STATE_UNSPECIFIED: _ClassVar[ServerState]
    SERVER_STATE_STARTING: _ClassVar[ServerState]
    SERVER_STATE_SERVING: _ClassVar[ServerState]
    SERVER_STATE_DRAINING: _ClassVar[ServerState]
    SERVER_STATE_FAILED: _ClassVar[ServerState]
SERVER_STATE_UNSPECIFIED: ServerState
SERVER_STATE_STARTING: ServerState
SERVER_STATE_SERVING: ServerState
SERVER_STATE_DRAINING: ServerState
SERVER_STATE_FAILED: ServerState

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "engine_version", "instance_id", "state", "start_time", "parallelism", "config")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    version: str
    engine_version: str
    instance_id: str
    state: ServerState
    start_time: _timestamp_pb2.Timestamp
    parallelism: Parallelism
    config: _struct_pb2.Struct
    def __init__(self, version: _Optional[str] = ..., engine_version: _Optional[str] = ..., instance_id: _Optional[str] = ..., state: _Optional[_Union[ServerState, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parallelism: _Optional[_Union[Parallelism, _Mapping]] = ..., config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Parallelism(_message.Message):
    __slots__ = ("tensor", "pipeline", "data", "expert")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    pipeline: int
    data: int
    expert: int
    def __init__(self, tensor: _Optional[int] = ..., pipeline: _Optional[int] = ..., data: _Optional[int] = ..., expert: _Optional[int] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("min_interval",)
    MIN_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    min_interval: _duration_pb2.Duration
    def __init__(self, min_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("time", "ranks")
    TIME_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    ranks: _containers.RepeatedCompositeFieldContainer[RankLoad]
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[RankLoad, _Mapping]]] = ...) -> None: ...

class RankLoad(_message.Message):
    __slots__ = ("rank", "running_requests", "waiting_requests", "waiting_uncached_tokens", "kv_used_tokens", "kv_total_tokens", "output_tokens_per_second", "prefix_cache_hit_rate", "preemptions", "refused_requests", "drafted_tokens", "accepted_draft_tokens")
    class RefusedRequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    running_requests: int
    waiting_requests: int
    waiting_uncached_tokens: int
    kv_used_tokens: int
    kv_total_tokens: int
    output_tokens_per_second: float
    prefix_cache_hit_rate: float
    preemptions: int
    refused_requests: _containers.ScalarMap[str, int]
    drafted_tokens: int
    accepted_draft_tokens: int
    def __init__(self, rank: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., waiting_uncached_tokens: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., output_tokens_per_second: _Optional[float] = ..., prefix_cache_hit_rate: _Optional[float] = ..., preemptions: _Optional[int] = ..., refused_requests: _Optional[_Mapping[str, int]] = ..., drafted_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout", "frontend", "all_frontends")
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    ALL_FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    timeout: _duration_pb2.Duration
    frontend: str
    all_frontends: bool
    def __init__(self, timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., frontend: _Optional[str] = ..., all_frontends: _Optional[bool] = ...) -> None: ...

class FrontendStatus(_message.Message):
    __slots__ = ("instance_id", "name", "address", "state", "in_flight_requests", "error")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    name: str
    address: str
    state: ServerState
    in_flight_requests: int
    error: str
    def __init__(self, instance_id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[_Union[ServerState, str]] = ..., in_flight_requests: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("in_flight_requests", "frontends")
    IN_FLIGHT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    in_flight_requests: int
    frontends: _containers.RepeatedCompositeFieldContainer[FrontendStatus]
    def __init__(self, in_flight_requests: _Optional[int] = ..., frontends: _Optional[_Iterable[_Union[FrontendStatus, _Mapping]]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("frontend", "all_frontends")
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    ALL_FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    frontend: str
    all_frontends: bool
    def __init__(self, frontend: _Optional[str] = ..., all_frontends: _Optional[bool] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("frontends",)
    FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    frontends: _containers.RepeatedCompositeFieldContainer[FrontendStatus]
    def __init__(self, frontends: _Optional[_Iterable[_Union[FrontendStatus, _Mapping]]] = ...) -> None: ...

class ResetCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetCacheResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartProfileRequest(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class StartProfileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopProfileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopProfileResponse(_message.Message):
    __slots__ = ("paths",)
    PATHS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, paths: _Optional[_Iterable[str]] = ...) -> None: ...
