import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from pagewire.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_PHASE_UNSPECIFIED: _ClassVar[RequestPhase]
    REQUEST_PHASE_ARRIVING: _ClassVar[RequestPhase]
    REQUEST_PHASE_WITHOUT_ENGINE: _ClassVar[RequestPhase]
    REQUEST_PHASE_PREPARING: _ClassVar[RequestPhase]
    REQUEST_PHASE_QUEUED: _ClassVar[RequestPhase]
    REQUEST_PHASE_PREFILL: _ClassVar[RequestPhase]
    REQUEST_PHASE_DECODE: _ClassVar[RequestPhase]
    REQUEST_PHASE_PREEMPTED: _ClassVar[RequestPhase]
    REQUEST_PHASE_FINISHING: _ClassVar[RequestPhase]

class WaitCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_CAUSE_UNSPECIFIED: _ClassVar[WaitCause]
    WAIT_CAUSE_TURN: _ClassVar[WaitCause]
    WAIT_CAUSE_ROWS: _ClassVar[WaitCause]
    WAIT_CAUSE_BLOCKS: _ClassVar[WaitCause]
    WAIT_CAUSE_BUDGET: _ClassVar[WaitCause]
    WAIT_CAUSE_TRIAL: _ClassVar[WaitCause]
    WAIT_CAUSE_GRAMMAR: _ClassVar[WaitCause]
    WAIT_CAUSE_ENGINE: _ClassVar[WaitCause]
    WAIT_CAUSE_ADAPTER: _ClassVar[WaitCause]
    WAIT_CAUSE_KV_TRANSFER: _ClassVar[WaitCause]
    WAIT_CAUSE_ENCODER: _ClassVar[WaitCause]

class EngineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_STATE_UNSPECIFIED: _ClassVar[EngineState]
    ENGINE_STATE_AWAY: _ClassVar[EngineState]
    ENGINE_STATE_SERVING: _ClassVar[EngineState]
    ENGINE_STATE_UNUSED: _ClassVar[EngineState]
    ENGINE_STATE_LEAVING: _ClassVar[EngineState]

class EngineRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_ROLE_UNSPECIFIED: _ClassVar[EngineRole]
    ENGINE_ROLE_BOTH: _ClassVar[EngineRole]
    ENGINE_ROLE_PREFILL: _ClassVar[EngineRole]
    ENGINE_ROLE_DECODE: _ClassVar[EngineRole]

class EngineEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_EVENT_KIND_UNSPECIFIED: _ClassVar[EngineEventKind]
    ENGINE_EVENT_KIND_SERVES: _ClassVar[EngineEventKind]
    ENGINE_EVENT_KIND_LOST: _ClassVar[EngineEventKind]
    ENGINE_EVENT_KIND_RESUMED: _ClassVar[EngineEventKind]
    ENGINE_EVENT_KIND_QUARANTINED: _ClassVar[EngineEventKind]
REQUEST_PHASE_UNSPECIFIED: RequestPhase
REQUEST_PHASE_ARRIVING: RequestPhase
REQUEST_PHASE_WITHOUT_ENGINE: RequestPhase
REQUEST_PHASE_PREPARING: RequestPhase
REQUEST_PHASE_QUEUED: RequestPhase
REQUEST_PHASE_PREFILL: RequestPhase
REQUEST_PHASE_DECODE: RequestPhase
REQUEST_PHASE_PREEMPTED: RequestPhase
REQUEST_PHASE_FINISHING: RequestPhase
WAIT_CAUSE_UNSPECIFIED: WaitCause
WAIT_CAUSE_TURN: WaitCause
WAIT_CAUSE_ROWS: WaitCause
WAIT_CAUSE_BLOCKS: WaitCause
WAIT_CAUSE_BUDGET: WaitCause
WAIT_CAUSE_TRIAL: WaitCause
WAIT_CAUSE_GRAMMAR: WaitCause
WAIT_CAUSE_ENGINE: WaitCause
WAIT_CAUSE_ADAPTER: WaitCause
WAIT_CAUSE_KV_TRANSFER: WaitCause
WAIT_CAUSE_ENCODER: WaitCause
ENGINE_STATE_UNSPECIFIED: EngineState
ENGINE_STATE_AWAY: EngineState
ENGINE_STATE_SERVING: EngineState
ENGINE_STATE_UNUSED: EngineState
ENGINE_STATE_LEAVING: EngineState
ENGINE_ROLE_UNSPECIFIED: EngineRole
ENGINE_ROLE_BOTH: EngineRole
ENGINE_ROLE_PREFILL: EngineRole
ENGINE_ROLE_DECODE: EngineRole
ENGINE_EVENT_KIND_UNSPECIFIED: EngineEventKind
ENGINE_EVENT_KIND_SERVES: EngineEventKind
ENGINE_EVENT_KIND_LOST: EngineEventKind
ENGINE_EVENT_KIND_RESUMED: EngineEventKind
ENGINE_EVENT_KIND_QUARANTINED: EngineEventKind

class RequestInfo(_message.Message):
    __slots__ = ("request_id", "tenant", "priority", "phase", "waits_for", "sequences", "running_sequences", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "age", "timings", "blocks", "shared_blocks", "preemptions", "rank", "frontend", "trace_id", "deadline", "arrival_time")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_TIME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    priority: int
    phase: RequestPhase
    waits_for: WaitCause
    sequences: int
    running_sequences: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    age: _duration_pb2.Duration
    timings: _generation_pb2.Timings
    blocks: int
    shared_blocks: int
    preemptions: int
    rank: int
    frontend: str
    trace_id: str
    deadline: _duration_pb2.Duration
    arrival_time: _timestamp_pb2.Timestamp
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., phase: _Optional[_Union[RequestPhase, str]] = ..., waits_for: _Optional[_Union[WaitCause, str]] = ..., sequences: _Optional[int] = ..., running_sequences: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timings: _Optional[_Union[_generation_pb2.Timings, _Mapping]] = ..., blocks: _Optional[int] = ..., shared_blocks: _Optional[int] = ..., preemptions: _Optional[int] = ..., rank: _Optional[int] = ..., frontend: _Optional[str] = ..., trace_id: _Optional[str] = ..., deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., arrival_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("limit", "tenant", "page_size", "page_token")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    limit: int
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, limit: _Optional[int] = ..., tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "total", "next_page_token")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestInfo]
    total: int
    next_page_token: str
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestInfo, _Mapping]]] = ..., total: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class SequenceInfo(_message.Message):
    __slots__ = ("index", "phase", "tokens", "computed_tokens", "output_tokens", "blocks")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    index: int
    phase: RequestPhase
    tokens: int
    computed_tokens: int
    output_tokens: int
    blocks: int
    def __init__(self, index: _Optional[int] = ..., phase: _Optional[_Union[RequestPhase, str]] = ..., tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class BlockSharer(_message.Message):
    __slots__ = ("request_id", "blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    blocks: int
    def __init__(self, request_id: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class QueuePosition(_message.Message):
    __slots__ = ("sequences_ahead", "tokens_ahead", "tenant_share", "predicted_wait")
    SEQUENCES_AHEAD_FIELD_NUMBER: _ClassVar[int]
    TOKENS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    TENANT_SHARE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_WAIT_FIELD_NUMBER: _ClassVar[int]
    sequences_ahead: int
    tokens_ahead: int
    tenant_share: float
    predicted_wait: _duration_pb2.Duration
    def __init__(self, sequences_ahead: _Optional[int] = ..., tokens_ahead: _Optional[int] = ..., tenant_share: _Optional[float] = ..., predicted_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("request", "sequences", "sharers", "num_sharers", "position", "swapped_tokens", "parameters")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARERS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    request: RequestInfo
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceInfo]
    sharers: _containers.RepeatedCompositeFieldContainer[BlockSharer]
    num_sharers: int
    position: QueuePosition
    swapped_tokens: int
    parameters: _generation_pb2.EffectiveParameters
    def __init__(self, request: _Optional[_Union[RequestInfo, _Mapping]] = ..., sequences: _Optional[_Iterable[_Union[SequenceInfo, _Mapping]]] = ..., sharers: _Optional[_Iterable[_Union[BlockSharer, _Mapping]]] = ..., num_sharers: _Optional[int] = ..., position: _Optional[_Union[QueuePosition, _Mapping]] = ..., swapped_tokens: _Optional[int] = ..., parameters: _Optional[_Union[_generation_pb2.EffectiveParameters, _Mapping]] = ...) -> None: ...

class GetKvPoolRequest(_message.Message):
    __slots__ = ("max_cells",)
    MAX_CELLS_FIELD_NUMBER: _ClassVar[int]
    max_cells: int
    def __init__(self, max_cells: _Optional[int] = ...) -> None: ...

class GetKvPoolResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[KvPool]
    def __init__(self, pools: _Optional[_Iterable[_Union[KvPool, _Mapping]]] = ...) -> None: ...

class KvHolder(_message.Message):
    __slots__ = ("request_id", "tenant", "blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    blocks: int
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class KvPool(_message.Message):
    __slots__ = ("rank", "block_size", "num_blocks", "held_blocks", "shared_blocks", "cached_blocks", "free_cached_blocks", "num_host_blocks", "used_host_blocks", "blocks_per_cell", "cell_held", "cell_shared", "cell_free_cached", "cell_holder", "holders")
    RANK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PER_CELL_FIELD_NUMBER: _ClassVar[int]
    CELL_HELD_FIELD_NUMBER: _ClassVar[int]
    CELL_SHARED_FIELD_NUMBER: _ClassVar[int]
    CELL_FREE_CACHED_FIELD_NUMBER: _ClassVar[int]
    CELL_HOLDER_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    block_size: int
    num_blocks: int
    held_blocks: int
    shared_blocks: int
    cached_blocks: int
    free_cached_blocks: int
    num_host_blocks: int
    used_host_blocks: int
    blocks_per_cell: int
    cell_held: _containers.RepeatedScalarFieldContainer[int]
    cell_shared: _containers.RepeatedScalarFieldContainer[int]
    cell_free_cached: _containers.RepeatedScalarFieldContainer[int]
    cell_holder: _containers.RepeatedScalarFieldContainer[int]
    holders: _containers.RepeatedCompositeFieldContainer[KvHolder]
    def __init__(self, rank: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., held_blocks: _Optional[int] = ..., shared_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., free_cached_blocks: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., used_host_blocks: _Optional[int] = ..., blocks_per_cell: _Optional[int] = ..., cell_held: _Optional[_Iterable[int]] = ..., cell_shared: _Optional[_Iterable[int]] = ..., cell_free_cached: _Optional[_Iterable[int]] = ..., cell_holder: _Optional[_Iterable[int]] = ..., holders: _Optional[_Iterable[_Union[KvHolder, _Mapping]]] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("limit", "page_size", "page_token")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    limit: int
    page_size: int
    page_token: str
    def __init__(self, limit: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants", "total", "next_page_token")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantInfo]
    total: int
    next_page_token: str
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantInfo, _Mapping]]] = ..., total: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TenantInfo(_message.Message):
    __slots__ = ("rank", "tenant", "requests", "sequences", "running_sequences", "waiting_sequences", "waiting_tokens", "weight", "share", "served")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    tenant: str
    requests: int
    sequences: int
    running_sequences: int
    waiting_sequences: int
    waiting_tokens: int
    weight: float
    share: float
    served: float
    def __init__(self, rank: _Optional[int] = ..., tenant: _Optional[str] = ..., requests: _Optional[int] = ..., sequences: _Optional[int] = ..., running_sequences: _Optional[int] = ..., waiting_sequences: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., weight: _Optional[float] = ..., share: _Optional[float] = ..., served: _Optional[float] = ...) -> None: ...

class ListEnginesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEnginesResponse(_message.Message):
    __slots__ = ("engines", "events")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[EngineInfo]
    events: _containers.RepeatedCompositeFieldContainer[EngineEvent]
    def __init__(self, engines: _Optional[_Iterable[_Union[EngineInfo, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[EngineEvent, _Mapping]]] = ...) -> None: ...

class EngineInfo(_message.Message):
    __slots__ = ("rank", "state", "address", "instance_id", "version", "start_time", "device", "architecture", "arithmetic", "num_blocks", "max_num_seqs", "requests_in_flight", "unanswered_heartbeats", "differs", "role")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: EngineState
    address: str
    instance_id: str
    version: str
    start_time: _timestamp_pb2.Timestamp
    device: str
    architecture: str
    arithmetic: str
    num_blocks: int
    max_num_seqs: int
    requests_in_flight: int
    unanswered_heartbeats: int
    differs: str
    role: EngineRole
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[_Union[EngineState, str]] = ..., address: _Optional[str] = ..., instance_id: _Optional[str] = ..., version: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., device: _Optional[str] = ..., architecture: _Optional[str] = ..., arithmetic: _Optional[str] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., unanswered_heartbeats: _Optional[int] = ..., differs: _Optional[str] = ..., role: _Optional[_Union[EngineRole, str]] = ...) -> None: ...

class EngineEvent(_message.Message):
    __slots__ = ("time", "kind", "rank", "instance_id", "requests")
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    kind: EngineEventKind
    rank: int
    instance_id: str
    requests: int
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[_Union[EngineEventKind, str]] = ..., rank: _Optional[int] = ..., instance_id: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...
