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
    __slots__ = ("start", "arrival", "abort", "finish", "reset", "plan", "result", "end", "suspects", "verdict", "prepared", "deadline", "kept")
    START_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    start: RecordingStart
    arrival: RecordedArrival
    abort: RecordedAbort
    finish: RecordedFinish
    reset: RecordedReset
    plan: RecordedPlan
    result: RecordedResult
    end: RecordedEnd
    suspects: RecordedSuspects
    verdict: RecordedVerdict
    prepared: RecordedPrepared
    deadline: RecordedDeadline
    kept: RecordedKeptCache
    def __init__(self, start: _Optional[_Union[RecordingStart, _Mapping]] = ..., arrival: _Optional[_Union[RecordedArrival, _Mapping]] = ..., abort: _Optional[_Union[RecordedAbort, _Mapping]] = ..., finish: _Optional[_Union[RecordedFinish, _Mapping]] = ..., reset: _Optional[_Union[RecordedReset, _Mapping]] = ..., plan: _Optional[_Union[RecordedPlan, _Mapping]] = ..., result: _Optional[_Union[RecordedResult, _Mapping]] = ..., end: _Optional[_Union[RecordedEnd, _Mapping]] = ..., suspects: _Optional[_Union[RecordedSuspects, _Mapping]] = ..., verdict: _Optional[_Union[RecordedVerdict, _Mapping]] = ..., prepared: _Optional[_Union[RecordedPrepared, _Mapping]] = ..., deadline: _Optional[_Union[RecordedDeadline, _Mapping]] = ..., kept: _Optional[_Union[RecordedKeptCache, _Mapping]] = ...) -> None: ...

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

class RecordedKeptCache(_message.Message):
    __slots__ = ("blocks", "block_hashes", "checkpoints", "checkpoint_hashes")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_HASHES_FIELD_NUMBER: _ClassVar[int]
    blocks: bytes
    block_hashes: bytes
    checkpoints: bytes
    checkpoint_hashes: bytes
    def __init__(self, blocks: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ..., checkpoints: _Optional[bytes] = ..., checkpoint_hashes: _Optional[bytes] = ...) -> None: ...

class RecordedDeadline(_message.Message):
    __slots__ = ("number", "deadline_at")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    number: int
    deadline_at: float
    def __init__(self, number: _Optional[int] = ..., deadline_at: _Optional[float] = ...) -> None: ...

class RecordedArrival(_message.Message):
    __slots__ = ("number", "arrival", "prompt_len", "block_hashes", "n", "max_tokens", "min_tokens", "max_model_len", "tenant", "priority", "cache_bypass", "time_limit_at", "deadline_at", "delivered", "prompt_token_ids", "namespace", "prompt_logprobs_start", "num_beam_results", "num_beam_candidates", "deliveries", "tenant_weight", "suspect", "max_draft_tokens", "preparing", "has_grammar", "pooling_type")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYPASS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_AT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAM_RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREPARING_FIELD_NUMBER: _ClassVar[int]
    HAS_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    POOLING_TYPE_FIELD_NUMBER: _ClassVar[int]
    number: int
    arrival: float
    prompt_len: int
    block_hashes: bytes
    n: int
    max_tokens: int
    min_tokens: int
    max_model_len: int
    tenant: str
    priority: int
    cache_bypass: bool
    time_limit_at: float
    deadline_at: float
    delivered: bytes
    prompt_token_ids: bytes
    namespace: int
    prompt_logprobs_start: int
    num_beam_results: int
    num_beam_candidates: int
    deliveries: _containers.RepeatedCompositeFieldContainer[RecordedDelivery]
    tenant_weight: float
    suspect: int
    max_draft_tokens: int
    preparing: bool
    has_grammar: bool
    pooling_type: int
    def __init__(self, number: _Optional[int] = ..., arrival: _Optional[float] = ..., prompt_len: _Optional[int] = ..., block_hashes: _Optional[bytes] = ..., n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., cache_bypass: _Optional[bool] = ..., time_limit_at: _Optional[float] = ..., deadline_at: _Optional[float] = ..., delivered: _Optional[bytes] = ..., prompt_token_ids: _Optional[bytes] = ..., namespace: _Optional[int] = ..., prompt_logprobs_start: _Optional[int] = ..., num_beam_results: _Optional[int] = ..., num_beam_candidates: _Optional[int] = ..., deliveries: _Optional[_Iterable[_Union[RecordedDelivery, _Mapping]]] = ..., tenant_weight: _Optional[float] = ..., suspect: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., preparing: _Optional[bool] = ..., has_grammar: _Optional[bool] = ..., pooling_type: _Optional[int] = ...) -> None: ...

class RecordedPrepared(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RecordedSuspects(_message.Message):
    __slots__ = ("num_deaths", "suspects")
    NUM_DEATHS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    num_deaths: int
    suspects: _containers.RepeatedCompositeFieldContainer[RecordedSuspect]
    def __init__(self, num_deaths: _Optional[int] = ..., suspects: _Optional[_Iterable[_Union[RecordedSuspect, _Mapping]]] = ...) -> None: ...

class RecordedSuspect(_message.Message):
    __slots__ = ("first", "end", "group", "death", "strikes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEATH_FIELD_NUMBER: _ClassVar[int]
    STRIKES_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    group: int
    death: int
    strikes: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., group: _Optional[int] = ..., death: _Optional[int] = ..., strikes: _Optional[int] = ...) -> None: ...

class RecordedVerdict(_message.Message):
    __slots__ = ("suspect",)
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    suspect: int
    def __init__(self, suspect: _Optional[int] = ...) -> None: ...

class RecordedDelivery(_message.Message):
    __slots__ = ("block_hashes", "token_ids")
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    block_hashes: bytes
    token_ids: bytes
    def __init__(self, block_hashes: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class RecordedAbort(_message.Message):
    __slots__ = ("number", "indexes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    number: int
    indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class RecordedFinish(_message.Message):
    __slots__ = ("number", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: int
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[int] = ...) -> None: ...

class RecordedReset(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordedPlan(_message.Message):
    __slots__ = ("now", "step", "removed_rows", "new_rows", "forks", "table_rows", "table_starts", "table_counts", "table_blocks", "copy_sources", "copy_targets", "rows", "starts", "starts_sum", "counts", "sample_rows", "is_sample_empty", "sample_sources", "append_rows", "swap_out_blocks", "swap_out_host_blocks", "swap_in_host_blocks", "swap_in_blocks", "sample_counts", "restore_rows", "restore_checkpoints", "save_rows", "save_positions", "save_checkpoints")
    NOW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ROWS_FIELD_NUMBER: _ClassVar[int]
    NEW_ROWS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    TABLE_STARTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPY_SOURCES_FIELD_NUMBER: _ClassVar[int]
    COPY_TARGETS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    STARTS_SUM_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    IS_SAMPLE_EMPTY_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SOURCES_FIELD_NUMBER: _ClassVar[int]
    APPEND_ROWS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_ROWS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    SAVE_ROWS_FIELD_NUMBER: _ClassVar[int]
    SAVE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    now: float
    step: int
    removed_rows: bytes
    new_rows: _containers.RepeatedCompositeFieldContainer[RecordedNewRow]
    forks: bytes
    table_rows: bytes
    table_starts: bytes
    table_counts: bytes
    table_blocks: bytes
    copy_sources: bytes
    copy_targets: bytes
    rows: bytes
    starts: bytes
    starts_sum: int
    counts: bytes
    sample_rows: bytes
    is_sample_empty: bool
    sample_sources: bytes
    append_rows: bytes
    swap_out_blocks: bytes
    swap_out_host_blocks: bytes
    swap_in_host_blocks: bytes
    swap_in_blocks: bytes
    sample_counts: bytes
    restore_rows: bytes
    restore_checkpoints: bytes
    save_rows: bytes
    save_positions: bytes
    save_checkpoints: bytes
    def __init__(self, now: _Optional[float] = ..., step: _Optional[int] = ..., removed_rows: _Optional[bytes] = ..., new_rows: _Optional[_Iterable[_Union[RecordedNewRow, _Mapping]]] = ..., forks: _Optional[bytes] = ..., table_rows: _Optional[bytes] = ..., table_starts: _Optional[bytes] = ..., table_counts: _Optional[bytes] = ..., table_blocks: _Optional[bytes] = ..., copy_sources: _Optional[bytes] = ..., copy_targets: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., starts_sum: _Optional[int] = ..., counts: _Optional[bytes] = ..., sample_rows: _Optional[bytes] = ..., is_sample_empty: _Optional[bool] = ..., sample_sources: _Optional[bytes] = ..., append_rows: _Optional[bytes] = ..., swap_out_blocks: _Optional[bytes] = ..., swap_out_host_blocks: _Optional[bytes] = ..., swap_in_host_blocks: _Optional[bytes] = ..., swap_in_blocks: _Optional[bytes] = ..., sample_counts: _Optional[bytes] = ..., restore_rows: _Optional[bytes] = ..., restore_checkpoints: _Optional[bytes] = ..., save_rows: _Optional[bytes] = ..., save_positions: _Optional[bytes] = ..., save_checkpoints: _Optional[bytes] = ...) -> None: ...

class RecordedNewRow(_message.Message):
    __slots__ = ("row", "number", "sequence_index", "num_tokens", "blocks", "prompt_logprobs_start", "num_beam_candidates")
    ROW_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    row: int
    number: int
    sequence_index: int
    num_tokens: int
    blocks: bytes
    prompt_logprobs_start: int
    num_beam_candidates: int
    def __init__(self, row: _Optional[int] = ..., number: _Optional[int] = ..., sequence_index: _Optional[int] = ..., num_tokens: _Optional[int] = ..., blocks: _Optional[bytes] = ..., prompt_logprobs_start: _Optional[int] = ..., num_beam_candidates: _Optional[int] = ...) -> None: ...

class RecordedResult(_message.Message):
    __slots__ = ("duration_us", "without_token", "choices", "sample_counts", "draft_counts", "next_draft_counts", "started_ns", "draft_prefill", "draft_methods")
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PREFILL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_METHODS_FIELD_NUMBER: _ClassVar[int]
    duration_us: int
    without_token: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedCompositeFieldContainer[RecordedChoice]
    sample_counts: bytes
    draft_counts: bytes
    next_draft_counts: bytes
    started_ns: int
    draft_prefill: bool
    draft_methods: bytes
    def __init__(self, duration_us: _Optional[int] = ..., without_token: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[_Union[RecordedChoice, _Mapping]]] = ..., sample_counts: _Optional[bytes] = ..., draft_counts: _Optional[bytes] = ..., next_draft_counts: _Optional[bytes] = ..., started_ns: _Optional[int] = ..., draft_prefill: _Optional[bool] = ..., draft_methods: _Optional[bytes] = ...) -> None: ...

class RecordedChoice(_message.Message):
    __slots__ = ("number", "length", "is_over", "parents", "block_hashes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    number: int
    length: int
    is_over: bool
    parents: bytes
    block_hashes: bytes
    def __init__(self, number: _Optional[int] = ..., length: _Optional[int] = ..., is_over: _Optional[bool] = ..., parents: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ...) -> None: ...

class RecordedEnd(_message.Message):
    __slots__ = ("number", "index", "num_output_tokens", "reason", "block_hashes", "first_block", "output_token_ids")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    num_output_tokens: int
    reason: int
    block_hashes: bytes
    first_block: int
    output_token_ids: bytes
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., reason: _Optional[int] = ..., block_hashes: _Optional[bytes] = ..., first_block: _Optional[int] = ..., output_token_ids: _Optional[bytes] = ...) -> None: ...
