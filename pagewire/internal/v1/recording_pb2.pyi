from pagewire.internal.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordedChunk(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[RecordedCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[RecordedCall, _Mapping]]] = ...) -> None: ...

class RecordedCall(_message.Message):
    __slots__ = ("start", "event", "plan", "result")
    START_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    start: RecordingStart
    event: RecordedEvent
    plan: RecordedPlan
    result: _worker_pb2.StepResult
    def __init__(self, start: _Optional[_Union[RecordingStart, _Mapping]] = ..., event: _Optional[_Union[RecordedEvent, _Mapping]] = ..., plan: _Optional[_Union[RecordedPlan, _Mapping]] = ..., result: _Optional[_Union[_worker_pb2.StepResult, _Mapping]] = ...) -> None: ...

class RecordingStart(_message.Message):
    __slots__ = ("format", "version", "settings", "has_tokens")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    HAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    format: int
    version: str
    settings: str
    has_tokens: bool
    def __init__(self, format: _Optional[int] = ..., version: _Optional[str] = ..., settings: _Optional[str] = ..., has_tokens: _Optional[bool] = ...) -> None: ...

class RecordedEvent(_message.Message):
    __slots__ = ("name", "number", "facts", "columns")
    class ColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    facts: str
    columns: _containers.ScalarMap[str, bytes]
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., facts: _Optional[str] = ..., columns: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class RecordedPlan(_message.Message):
    __slots__ = ("now", "step", "starts_sum", "columns")
    NOW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STARTS_SUM_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    now: float
    step: int
    starts_sum: int
    columns: _containers.RepeatedCompositeFieldContainer[RecordedColumn]
    def __init__(self, now: _Optional[float] = ..., step: _Optional[int] = ..., starts_sum: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[RecordedColumn, _Mapping]]] = ...) -> None: ...

class RecordedColumn(_message.Message):
    __slots__ = ("field", "values")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    field: int
    values: bytes
    def __init__(self, field: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...
