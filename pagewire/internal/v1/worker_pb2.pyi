from pagewire.internal.v1 import engine_pb2 as _engine_pb2
from pagewire.v1 import generation_pb2 as _generation_pb2
from pagewire.v1 import prompt_pb2 as _prompt_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvTransfer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_TRANSFER_UNSPECIFIED: _ClassVar[KvTransfer]
    KV_TRANSFER_NIXL: _ClassVar[KvTransfer]
KV_TRANSFER_UNSPECIFIED: KvTransfer
KV_TRANSFER_NIXL: KvTransfer

class WorkerCommand(_message.Message):
    __slots__ = ("initialize", "step_plan", "shutdown", "compile_grammar", "kept_changes", "end_burst", "load_adapter", "drop_adapter", "read_blocks", "stop_reading")
    INITIALIZE_FIELD_NUMBER: _ClassVar[int]
    STEP_PLAN_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    COMPILE_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    KEPT_CHANGES_FIELD_NUMBER: _ClassVar[int]
    END_BURST_FIELD_NUMBER: _ClassVar[int]
    LOAD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    DROP_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    READ_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STOP_READING_FIELD_NUMBER: _ClassVar[int]
    initialize: Initialize
    step_plan: StepPlan
    shutdown: Shutdown
    compile_grammar: CompileGrammar
    kept_changes: KeptChanges
    end_burst: EndBurst
    load_adapter: LoadAdapter
    drop_adapter: DropAdapter
    read_blocks: ReadBlocks
    stop_reading: StopReading
    def __init__(self, initialize: _Optional[_Union[Initialize, _Mapping]] = ..., step_plan: _Optional[_Union[StepPlan, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ..., compile_grammar: _Optional[_Union[CompileGrammar, _Mapping]] = ..., kept_changes: _Optional[_Union[KeptChanges, _Mapping]] = ..., end_burst: _Optional[_Union[EndBurst, _Mapping]] = ..., load_adapter: _Optional[_Union[LoadAdapter, _Mapping]] = ..., drop_adapter: _Optional[_Union[DropAdapter, _Mapping]] = ..., read_blocks: _Optional[_Union[ReadBlocks, _Mapping]] = ..., stop_reading: _Optional[_Union[StopReading, _Mapping]] = ...) -> None: ...

class EndBurst(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("hello", "load_progress", "ready", "step_result", "failed", "grammar_compiled", "adapter_loaded", "blocks_read")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STEP_RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_COMPILED_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_LOADED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_READ_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    load_progress: LoadProgress
    ready: Ready
    step_result: StepResult
    failed: Failed
    grammar_compiled: GrammarCompiled
    adapter_loaded: AdapterLoaded
    blocks_read: BlocksRead
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., load_progress: _Optional[_Union[LoadProgress, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., step_result: _Optional[_Union[StepResult, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., grammar_compiled: _Optional[_Union[GrammarCompiled, _Mapping]] = ..., adapter_loaded: _Optional[_Union[AdapterLoaded, _Mapping]] = ..., blocks_read: _Optional[_Union[BlocksRead, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("rank", "pid", "version", "host", "group_size", "store_port")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    version: str
    host: str
    group_size: int
    store_port: int
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., host: _Optional[str] = ..., group_size: _Optional[int] = ..., store_port: _Optional[int] = ...) -> None: ...

class Initialize(_message.Message):
    __slots__ = ("model_path", "device", "dtype", "load_format", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks", "kv_cache_bytes", "gpu_memory_utilization", "enforce_eager", "fast_matmul", "seed", "tensor_parallel_size", "pipeline_parallel_size", "encoder_cache_tokens", "group_name", "first_rank_pid", "num_hosts", "store_port", "profile", "swap_space_bytes", "data_parallel_size", "quantization", "kv_cache_dtype", "plain_head", "cpu_kernels", "speculation", "model_impl", "trust_remote_code", "no_structured_output", "state_checkpoints", "config_overrides", "tokenizer_path", "cache_secret", "cache_key", "kv_transfer", "trusts_network", "max_loras")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_EAGER_FIELD_NUMBER: _ClassVar[int]
    FAST_MATMUL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUP_NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_PID_FIELD_NUMBER: _ClassVar[int]
    NUM_HOSTS_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SWAP_SPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PLAIN_HEAD_FIELD_NUMBER: _ClassVar[int]
    CPU_KERNELS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_IMPL_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    NO_STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STATE_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_PATH_FIELD_NUMBER: _ClassVar[int]
    CACHE_SECRET_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    TRUSTS_NETWORK_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    device: str
    dtype: str
    load_format: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    kv_cache_bytes: int
    gpu_memory_utilization: float
    enforce_eager: bool
    fast_matmul: bool
    seed: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    encoder_cache_tokens: int
    group_name: str
    first_rank_pid: int
    num_hosts: int
    store_port: int
    profile: str
    swap_space_bytes: int
    data_parallel_size: int
    quantization: str
    kv_cache_dtype: str
    plain_head: bool
    cpu_kernels: str
    speculation: Speculation
    model_impl: str
    trust_remote_code: bool
    no_structured_output: bool
    state_checkpoints: int
    config_overrides: str
    tokenizer_path: str
    cache_secret: bytes
    cache_key: bytes
    kv_transfer: KvTransfer
    trusts_network: bool
    max_loras: int
    def __init__(self, model_path: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., load_format: _Optional[str] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., gpu_memory_utilization: _Optional[float] = ..., enforce_eager: _Optional[bool] = ..., fast_matmul: _Optional[bool] = ..., seed: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., encoder_cache_tokens: _Optional[int] = ..., group_name: _Optional[str] = ..., first_rank_pid: _Optional[int] = ..., num_hosts: _Optional[int] = ..., store_port: _Optional[int] = ..., profile: _Optional[str] = ..., swap_space_bytes: _Optional[int] = ..., data_parallel_size: _Optional[int] = ..., quantization: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., plain_head: _Optional[bool] = ..., cpu_kernels: _Optional[str] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., model_impl: _Optional[str] = ..., trust_remote_code: _Optional[bool] = ..., no_structured_output: _Optional[bool] = ..., state_checkpoints: _Optional[int] = ..., config_overrides: _Optional[str] = ..., tokenizer_path: _Optional[str] = ..., cache_secret: _Optional[bytes] = ..., cache_key: _Optional[bytes] = ..., kv_transfer: _Optional[_Union[KvTransfer, str]] = ..., trusts_network: _Optional[bool] = ..., max_loras: _Optional[int] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("method", "model_path", "tokens", "batch", "shared", "acceptance", "flag")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    method: _engine_pb2.DraftMethod
    model_path: str
    tokens: int
    batch: int
    shared: int
    acceptance: int
    flag: str
    def __init__(self, method: _Optional[_Union[_engine_pb2.DraftMethod, str]] = ..., model_path: _Optional[str] = ..., tokens: _Optional[int] = ..., batch: _Optional[int] = ..., shared: _Optional[int] = ..., acceptance: _Optional[int] = ..., flag: _Optional[str] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("what", "fraction")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    what: str
    fraction: float
    def __init__(self, what: _Optional[str] = ..., fraction: _Optional[float] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("model", "num_blocks", "kv_cache_bytes", "device", "depends_on_prompt_len", "num_host_blocks", "prefill_us_per_token", "swap_us_per_block", "num_threads", "has_states", "num_state_checkpoints", "kept_cache", "draft_tokens", "draft_batch", "takes_bursts", "adapters", "eos_origins", "weights_digest", "transfer_address", "transfer_block_bytes", "max_item_vectors", "tokens_per_vector", "stages", "micro_batch_rows")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SWAP_US_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    HAS_STATES_FIELD_NUMBER: _ClassVar[int]
    NUM_STATE_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_CACHE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_BATCH_FIELD_NUMBER: _ClassVar[int]
    TAKES_BURSTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    EOS_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEM_VECTORS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_VECTOR_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    model: _engine_pb2.ModelFacts
    num_blocks: int
    kv_cache_bytes: int
    device: str
    depends_on_prompt_len: bool
    num_host_blocks: int
    prefill_us_per_token: float
    swap_us_per_block: float
    num_threads: int
    has_states: bool
    num_state_checkpoints: int
    kept_cache: KeptCache
    draft_tokens: int
    draft_batch: int
    takes_bursts: bool
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterLoaded]
    eos_origins: _containers.RepeatedScalarFieldContainer[str]
    weights_digest: bytes
    transfer_address: str
    transfer_block_bytes: int
    max_item_vectors: int
    tokens_per_vector: int
    stages: int
    micro_batch_rows: int
    def __init__(self, model: _Optional[_Union[_engine_pb2.ModelFacts, _Mapping]] = ..., num_blocks: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., device: _Optional[str] = ..., depends_on_prompt_len: _Optional[bool] = ..., num_host_blocks: _Optional[int] = ..., prefill_us_per_token: _Optional[float] = ..., swap_us_per_block: _Optional[float] = ..., num_threads: _Optional[int] = ..., has_states: _Optional[bool] = ..., num_state_checkpoints: _Optional[int] = ..., kept_cache: _Optional[_Union[KeptCache, _Mapping]] = ..., draft_tokens: _Optional[int] = ..., draft_batch: _Optional[int] = ..., takes_bursts: _Optional[bool] = ..., adapters: _Optional[_Iterable[_Union[AdapterLoaded, _Mapping]]] = ..., eos_origins: _Optional[_Iterable[str]] = ..., weights_digest: _Optional[bytes] = ..., transfer_address: _Optional[str] = ..., transfer_block_bytes: _Optional[int] = ..., max_item_vectors: _Optional[int] = ..., tokens_per_vector: _Optional[int] = ..., stages: _Optional[int] = ..., micro_batch_rows: _Optional[int] = ...) -> None: ...

class KeptCache(_message.Message):
    __slots__ = ("secret", "blocks", "contents", "checkpoints", "checkpoint_contents")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    blocks: bytes
    contents: bytes
    checkpoints: bytes
    checkpoint_contents: bytes
    def __init__(self, secret: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., contents: _Optional[bytes] = ..., checkpoints: _Optional[bytes] = ..., checkpoint_contents: _Optional[bytes] = ...) -> None: ...

class KeptChanges(_message.Message):
    __slots__ = ("forgets_all", "forgotten_blocks", "kept_blocks", "kept_contents", "forgets_all_checkpoints", "forgotten_checkpoints", "kept_checkpoints", "kept_checkpoint_contents")
    FORGETS_ALL_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEPT_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    FORGETS_ALL_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_CHECKPOINT_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    forgets_all: bool
    forgotten_blocks: bytes
    kept_blocks: bytes
    kept_contents: bytes
    forgets_all_checkpoints: bool
    forgotten_checkpoints: bytes
    kept_checkpoints: bytes
    kept_checkpoint_contents: bytes
    def __init__(self, forgets_all: _Optional[bool] = ..., forgotten_blocks: _Optional[bytes] = ..., kept_blocks: _Optional[bytes] = ..., kept_contents: _Optional[bytes] = ..., forgets_all_checkpoints: _Optional[bool] = ..., forgotten_checkpoints: _Optional[bytes] = ..., kept_checkpoints: _Optional[bytes] = ..., kept_checkpoint_contents: _Optional[bytes] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("type", "what", "why", "todo", "traceback", "may_pass")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TODO_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    MAY_PASS_FIELD_NUMBER: _ClassVar[int]
    type: str
    what: str
    why: str
    todo: str
    traceback: str
    may_pass: bool
    def __init__(self, type: _Optional[str] = ..., what: _Optional[str] = ..., why: _Optional[str] = ..., todo: _Optional[str] = ..., traceback: _Optional[str] = ..., may_pass: _Optional[bool] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("step", "removed_rows", "new_rows", "forks", "table_rows", "table_starts", "table_counts", "table_blocks", "copy_sources", "copy_targets", "rows", "starts", "counts", "sample_rows", "sample_sources", "append_rows", "append_token_ids", "swap_out_blocks", "swap_out_host_blocks", "swap_in_host_blocks", "swap_in_blocks", "sample_counts", "restore_rows", "restore_checkpoints", "save_rows", "save_positions", "save_checkpoints", "kept_changes", "encode", "forgotten_media", "micro_batch")
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
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SOURCES_FIELD_NUMBER: _ClassVar[int]
    APPEND_ROWS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
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
    KEPT_CHANGES_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_MEDIA_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    step: int
    removed_rows: bytes
    new_rows: _containers.RepeatedCompositeFieldContainer[NewRow]
    forks: _containers.RepeatedCompositeFieldContainer[ForkRow]
    table_rows: bytes
    table_starts: bytes
    table_counts: bytes
    table_blocks: bytes
    copy_sources: bytes
    copy_targets: bytes
    rows: bytes
    starts: bytes
    counts: bytes
    sample_rows: bytes
    sample_sources: bytes
    append_rows: bytes
    append_token_ids: bytes
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
    kept_changes: KeptChanges
    encode: _containers.RepeatedCompositeFieldContainer[_engine_pb2.MediaItem]
    forgotten_media: bytes
    micro_batch: bool
    def __init__(self, step: _Optional[int] = ..., removed_rows: _Optional[bytes] = ..., new_rows: _Optional[_Iterable[_Union[NewRow, _Mapping]]] = ..., forks: _Optional[_Iterable[_Union[ForkRow, _Mapping]]] = ..., table_rows: _Optional[bytes] = ..., table_starts: _Optional[bytes] = ..., table_counts: _Optional[bytes] = ..., table_blocks: _Optional[bytes] = ..., copy_sources: _Optional[bytes] = ..., copy_targets: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., sample_rows: _Optional[bytes] = ..., sample_sources: _Optional[bytes] = ..., append_rows: _Optional[bytes] = ..., append_token_ids: _Optional[bytes] = ..., swap_out_blocks: _Optional[bytes] = ..., swap_out_host_blocks: _Optional[bytes] = ..., swap_in_host_blocks: _Optional[bytes] = ..., swap_in_blocks: _Optional[bytes] = ..., sample_counts: _Optional[bytes] = ..., restore_rows: _Optional[bytes] = ..., restore_checkpoints: _Optional[bytes] = ..., save_rows: _Optional[bytes] = ..., save_positions: _Optional[bytes] = ..., save_checkpoints: _Optional[bytes] = ..., kept_changes: _Optional[_Union[KeptChanges, _Mapping]] = ..., encode: _Optional[_Iterable[_Union[_engine_pb2.MediaItem, _Mapping]]] = ..., forgotten_media: _Optional[bytes] = ..., micro_batch: _Optional[bool] = ...) -> None: ...

class NewRow(_message.Message):
    __slots__ = ("row", "token_ids", "prompt_len", "blocks", "sequence_index", "sampling", "min_tokens", "stop_token_ids", "bad_words", "logprobs", "prompt_logprobs", "prompt_logprobs_start", "num_beam_candidates", "grammar", "tenant", "pooling", "adapter", "embeddings", "media")
    ROW_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_START_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    row: int
    token_ids: bytes
    prompt_len: int
    blocks: bytes
    sequence_index: int
    sampling: _generation_pb2.SamplingParams
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.TokenIds]
    logprobs: _generation_pb2.LogprobOptions
    prompt_logprobs: _generation_pb2.LogprobOptions
    prompt_logprobs_start: int
    num_beam_candidates: int
    grammar: str
    tenant: str
    pooling: _engine_pb2.Pooling
    adapter: RowAdapter
    embeddings: _engine_pb2.InputEmbeddings
    media: _containers.RepeatedCompositeFieldContainer[_engine_pb2.MediaItem]
    def __init__(self, row: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., prompt_len: _Optional[int] = ..., blocks: _Optional[bytes] = ..., sequence_index: _Optional[int] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[_Union[_prompt_pb2.TokenIds, _Mapping]]] = ..., logprobs: _Optional[_Union[_generation_pb2.LogprobOptions, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_generation_pb2.LogprobOptions, _Mapping]] = ..., prompt_logprobs_start: _Optional[int] = ..., num_beam_candidates: _Optional[int] = ..., grammar: _Optional[str] = ..., tenant: _Optional[str] = ..., pooling: _Optional[_Union[_engine_pb2.Pooling, _Mapping]] = ..., adapter: _Optional[_Union[RowAdapter, _Mapping]] = ..., embeddings: _Optional[_Union[_engine_pb2.InputEmbeddings, _Mapping]] = ..., media: _Optional[_Iterable[_Union[_engine_pb2.MediaItem, _Mapping]]] = ...) -> None: ...

class RowAdapter(_message.Message):
    __slots__ = ("digest", "start", "virtual_tokens")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    start: int
    virtual_tokens: int
    def __init__(self, digest: _Optional[bytes] = ..., start: _Optional[int] = ..., virtual_tokens: _Optional[int] = ...) -> None: ...

class ForkRow(_message.Message):
    __slots__ = ("row", "source_row", "sequence_index")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ROW_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    row: int
    source_row: int
    sequence_index: int
    def __init__(self, row: _Optional[int] = ..., source_row: _Optional[int] = ..., sequence_index: _Optional[int] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "token_ids", "duration_us", "started_ns", "logprobs", "prompt_logprobs", "beam_token_ids", "beam_logprobs", "prepare_us", "forward_us", "sample_us", "sample_counts", "draft_counts", "next_draft_counts", "row_errors", "draft_prefill", "draft_methods", "vectors", "encode_us")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BEAM_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BEAM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PREPARE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ROW_ERRORS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PREFILL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_METHODS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_US_FIELD_NUMBER: _ClassVar[int]
    step: int
    token_ids: bytes
    duration_us: int
    started_ns: int
    logprobs: _engine_pb2.LogprobColumns
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[RowPromptLogprobs]
    beam_token_ids: bytes
    beam_logprobs: bytes
    prepare_us: int
    forward_us: int
    sample_us: int
    sample_counts: bytes
    draft_counts: bytes
    next_draft_counts: bytes
    row_errors: _containers.RepeatedCompositeFieldContainer[RowError]
    draft_prefill: bool
    draft_methods: bytes
    vectors: _containers.RepeatedCompositeFieldContainer[RowVector]
    encode_us: int
    def __init__(self, step: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., duration_us: _Optional[int] = ..., started_ns: _Optional[int] = ..., logprobs: _Optional[_Union[_engine_pb2.LogprobColumns, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[RowPromptLogprobs, _Mapping]]] = ..., beam_token_ids: _Optional[bytes] = ..., beam_logprobs: _Optional[bytes] = ..., prepare_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., sample_counts: _Optional[bytes] = ..., draft_counts: _Optional[bytes] = ..., next_draft_counts: _Optional[bytes] = ..., row_errors: _Optional[_Iterable[_Union[RowError, _Mapping]]] = ..., draft_prefill: _Optional[bool] = ..., draft_methods: _Optional[bytes] = ..., vectors: _Optional[_Iterable[_Union[RowVector, _Mapping]]] = ..., encode_us: _Optional[int] = ...) -> None: ...

class RowVector(_message.Message):
    __slots__ = ("entry", "values")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    entry: int
    values: bytes
    def __init__(self, entry: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class CompileGrammar(_message.Message):
    __slots__ = ("number", "grammar")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    number: int
    grammar: str
    def __init__(self, number: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class GrammarCompiled(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LoadAdapter(_message.Message):
    __slots__ = ("number", "source", "digest", "max_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    source: str
    digest: bytes
    max_bytes: int
    def __init__(self, number: _Optional[int] = ..., source: _Optional[str] = ..., digest: _Optional[bytes] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class AdapterLoaded(_message.Message):
    __slots__ = ("number", "digest", "rank", "bytes", "invocation_token_ids", "problem", "modules", "base", "virtual_tokens")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    number: int
    digest: bytes
    rank: int
    bytes: int
    invocation_token_ids: _containers.RepeatedScalarFieldContainer[int]
    problem: str
    modules: _containers.RepeatedScalarFieldContainer[str]
    base: str
    virtual_tokens: int
    def __init__(self, number: _Optional[int] = ..., digest: _Optional[bytes] = ..., rank: _Optional[int] = ..., bytes: _Optional[int] = ..., invocation_token_ids: _Optional[_Iterable[int]] = ..., problem: _Optional[str] = ..., modules: _Optional[_Iterable[str]] = ..., base: _Optional[str] = ..., virtual_tokens: _Optional[int] = ...) -> None: ...

class ReadBlocks(_message.Message):
    __slots__ = ("number", "address", "blocks", "targets")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    number: int
    address: str
    blocks: bytes
    targets: bytes
    def __init__(self, number: _Optional[int] = ..., address: _Optional[str] = ..., blocks: _Optional[bytes] = ..., targets: _Optional[bytes] = ...) -> None: ...

class BlocksRead(_message.Message):
    __slots__ = ("number", "problem", "duration_us")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    number: int
    problem: str
    duration_us: int
    def __init__(self, number: _Optional[int] = ..., problem: _Optional[str] = ..., duration_us: _Optional[int] = ...) -> None: ...

class StopReading(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class DropAdapter(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class RowError(_message.Message):
    __slots__ = ("entry", "message")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    entry: int
    message: str
    def __init__(self, entry: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class RowPromptLogprobs(_message.Message):
    __slots__ = ("row", "start", "columns")
    ROW_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    row: int
    start: int
    columns: _engine_pb2.LogprobColumns
    def __init__(self, row: _Optional[int] = ..., start: _Optional[int] = ..., columns: _Optional[_Union[_engine_pb2.LogprobColumns, _Mapping]] = ...) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
