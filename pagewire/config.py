"""Configuration: one frozen dataclass per process, from whose fields the command line is made.

Configurations are immutable. Facts found at start-up (block count, actual context length) are reported in the
`Ready` and `Welcome` messages. Precedence: flag, environment variable `PAGEWIRE_NAME`, configuration file,
default.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

Device = Literal["auto", "cpu", "cuda", "simulated"]
Quantization = Literal["none", "int8", "int4", "int4-g32"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDtype = Literal["auto", "fp8_e4m3"]
LoadFormat = Literal["auto", "dummy"]
ModelImpl = Literal["auto", "native", "transformers"]
Scheduling = Literal["ahead", "sync"]
Policy = Literal["fair", "fcfs"]
MetricsNames = Literal["pagewire", "vllm"]
PoolingKind = Literal["auto", "last", "mean", "cls", "max", "weightedmean", "splade", "none"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

MAX_COUNT = (1 << 32) - 1
"""The largest count in messages between processes, which have fields of 32 bits."""
DEMO_MODEL = "demo"
"""Name of the model that ships with the package."""
NO_PORT = -1
"""Value of --http-port: none."""


def flag(
    default: Any,
    help: str,
    *,
    common: bool = False,
    metavar: str | None = None,
    positional: bool = False,
    pairs: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declares a field that is also a flag.

    common: shown by `--help`; others only by `--help-all`.
    positional: may also be given without its name.
    pairs: NAME=NUMBER, repeatable; a mapping in a file.
    at_least, at_most: the range of a number, inclusive.
    """
    metadata = {
        "help": help,
        "common": common,
        "metavar": metavar,
        "positional": positional,
        "pairs": pairs,
        "at_least": at_least,
        "at_most": at_most,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """Flags of every process."""

    log_level: LogLevel = flag("info", "least severe log lines to print")
    log_format: LogFormat = flag("text", "format of log lines; json: one object per line")
    process_name: str = flag("", "name of this process in logs and metrics", metavar="NAME")
    curve_key: str = flag("", "keys for tcp:// between processes (see: pagewire keys --help)", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class KeysConfig:
    """`pagewire keys`: makes the keys for tcp:// between processes: one file for engine cores, and one for
    frontends and workers."""

    folder: str = flag("", "folder to write them to", common=True, positional=True, metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class WatchedConfig(CommonConfig):
    """Flags of processes with metrics and health pages."""

    http_host: str = flag("127.0.0.1", "address of the HTTP port")
    http_port: int | None = flag(
        None,
        "HTTP port of metrics, usually 9464; -1: none",
        common=True,
        at_least=-1,
        at_most=65535,
    )
    http_tls_cert: str = flag("", "PEM file with the certificate of the HTTP port", metavar="FILE")
    http_tls_key: str = flag("", "PEM file with its key", metavar="FILE")
    metrics_names: MetricsNames = flag("pagewire", "vllm: metrics have vLLM's names, too")
    http_socket: str = flag("", "Unix socket for the same pages, for a supervisor", metavar="PATH")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(WatchedConfig):
    """Flags on which frontends and engine cores must agree."""

    model: str = flag(
        DEMO_MODEL,
        "folder, GGUF file or Hugging Face name; default: the demo",
        common=True,
        metavar="MODEL",
        positional=True,
    )
    standby: bool = flag(
        False, "import everything, then fork processes that serve, as the parent orders: see pagewire serve"
    )
    tokenizer: str = flag(
        "",
        "folder with tokenizer and chat template, or with serve a hub name; default: MODEL",
        metavar="MODEL",
    )
    hf_overrides: str = flag(
        "", "JSON object with fields that go before those of the checkpoint's config.json", metavar="JSON"
    )


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ModelConfig):
    """`pagewire frontend`: gRPC server, tokenizer, streams."""

    host: str = flag("127.0.0.1", "address to listen on", common=True)
    port: int = flag(50051, "gRPC port; 0: a free one", common=True, at_least=0, at_most=65535)
    served_model_name: tuple[str, ...] = flag(
        (),
        "model name in requests, repeatable; default: the folder's",
        common=True,
        metavar="NAME",
    )
    engine: tuple[str, ...] = flag(
        (),
        "address of an engine core (ipc:///folder/frontends.ipc); may be repeated; @FILE: one per line, "
        "reread when the file changes",
        metavar="ADDRESS",
    )
    reuse_port: bool = flag(False, "let several frontends listen on one port")
    openai_port: int | None = flag(
        None,
        "OpenAI API's HTTP port; 0: any; absent: none",
        common=True,
        at_least=0,
        at_most=65535,
    )
    vllm_engine: bool = flag(
        False, "serve vllm.grpc.engine.VllmEngine, for gateways such as smg (needs the extra `vllm`)"
    )
    open_inference: bool = flag(
        False, "serve inference.GRPCInferenceService, the Open Inference Protocol (KServe v2, Triton)"
    )
    tei: bool = flag(False, "serve tei.v1, the services of text-embeddings-inference")
    orca: bool = flag(
        False,
        "report the load to load balancers: OpenRcaService, and trailers of calls that ask",
    )
    loopback_port: int | None = flag(
        None,
        "second gRPC port, for a gateway on this machine: on 127.0.0.1, without TLS; default: none",
        at_least=1,
        at_most=65535,
    )
    openai_host: str = flag("127.0.0.1", "address of --openai-port")
    console: bool | None = flag(
        None,
        "serve the console, a live page with a chat, on --openai-port; default: where --openai-host is"
        " loopback",
    )
    openai_allowed_host: tuple[str, ...] = flag(
        (),
        "name in the Host header of HTTP requests that is served without --auth-file, besides localhost and"
        " IP addresses; may be repeated",
        metavar="NAME",
    )
    tls_cert: str = flag(
        "", "PEM file with the server's certificate chain; enables TLS", common=True, metavar="FILE"
    )
    tls_key: str = flag("", "PEM file with the private key of --tls-cert", common=True, metavar="FILE")
    tls_client_ca: str = flag(
        "",
        "PEM file with the authorities of client certificates, which are then required (mTLS)",
        metavar="FILE",
    )
    auth_file: str = flag(
        "", "hashed tokens that are accepted (docs/security.md)", common=True, metavar="FILE"
    )
    reflection: bool | None = flag(None, "serve gRPC reflection; default: on, off with --auth-file")
    tokenizer_threads: int = flag(2, "threads for tokenization and chat templates", at_least=1)
    max_request_bytes: int = flag(
        16 << 20, "largest gRPC message to accept", at_least=1024, at_most=(1 << 31) - 1
    )
    max_sequences: int = flag(64, "largest n, best_of and beam width of a request", at_least=1)
    max_stop_strings: int = flag(64, "maximum number of stop strings per request", at_least=0)
    max_logprobs: int = flag(
        20,
        "maximum number of candidates per token in log-probabilities; -1: the whole vocabulary",
        at_least=-1,
    )
    max_continuations: int = flag(128, "maximum number of continuations per scoring request", at_least=1)
    resume_timeout: float = flag(
        60.0, "seconds that streams wait for an engine that has died; 0: they fail at once", at_least=0
    )
    ready_timeout: float = flag(
        10.0, "seconds that new requests wait while no engine serves; 0: refused at once", at_least=0
    )
    disconnect_grace: float = flag(
        2.0,
        "seconds for which a request with an id of its client goes on when its connection breaks or its call"
        " is cancelled; the same submit takes it over; 0: it ends at once",
        at_least=0,
        at_most=60,
    )
    max_concurrent_requests: int = flag(
        4096, "concurrent requests per frontend; more are refused; 0: no limit", at_least=0
    )
    max_multiplexed_requests: int = flag(
        1024, "concurrent requests per multiplexed stream; more are refused", at_least=1
    )
    max_tokenizing_bytes: int = flag(
        64 << 20,
        "bytes of requests being tokenized per frontend; more are refused; 0: no limit",
        at_least=0,
    )
    keepalive_time: float = flag(
        30.0, "seconds without traffic after which the server pings a client", at_least=1
    )
    keepalive_timeout: float = flag(
        10.0,
        "seconds to wait for the answer before the connection is closed and its requests end",
        at_least=0.1,
    )
    max_merge_delay: float = flag(
        0.1,
        "seconds that output may wait to be sent with what follows, while the event loop lags; 0: never",
        at_least=0,
        at_most=10,
    )
    write_timeout: float = flag(
        60.0,
        "seconds that a client may take to read a message before its stream ends; 0: no limit",
        at_least=0,
    )
    otlp_endpoint: str = flag(
        "", "OTLP/gRPC collector of traces: http://HOST:PORT (needs the extra `tracing`)", metavar="URL"
    )
    trace_sample_rate: float = flag(
        1.0, "share of the requests without a trace context to trace", at_least=0, at_most=1
    )
    chat_template: str = flag(
        "", "file with a chat template to use instead of the checkpoint's", metavar="FILE"
    )
    score_template: str = flag(
        "",
        "template that makes one prompt of a query and a document: a file, or qwen3-reranker,"
        " bge-reranker-v2-gemma or mxbai-rerank-v2; default: the checkpoint's, or by its name",
        metavar="FILE",
    )
    score_tokens: str = flag(
        "",
        "tokens for and against relevance, such as yes,no; or one, whose logit alone counts; default: as the"
        " model that --score-template names, or the checkpoint's name",
        metavar="YES,NO",
    )
    tool_format: str = flag(
        "auto", "how the model writes tool calls; auto: as its checkpoint says", metavar="NAME"
    )
    reasoning_format: str = flag(
        "auto", "how the model marks reasoning; auto: as its checkpoint says", metavar="NAME"
    )
    generation_config: str = flag(
        "auto",
        "defaults of sampling; auto: the checkpoint's generation_config.json; none: temperature 1, no"
        " filters; or a file, or a folder that has one",
        metavar="PATH",
    )
    override_generation_config: str = flag(
        "",
        'JSON object with defaults of sampling that go before those, such as {"temperature": 0.5}',
        metavar="JSON",
    )
    seed: int = flag(
        -1,
        "seed of requests that have none; -1: a new one for each",
        at_least=-1,
        at_most=(1 << 64) - 1,
    )
    pooling_type: PoolingKind = flag(
        "auto",
        "hidden states that embeddings are made of: that of the last or first (cls) token, or of all the"
        " mean, the largest value of each element (max), or the mean weighted by position; splade: sparse"
        " vectors, of a ...ForMaskedLM; auto: as the checkpoint's modules.json says; none: no embeddings",
    )
    drain_delay: float = flag(
        0.0,
        "seconds between NOT_SERVING and the first refusal, for load balancers to notice; 0: none",
        at_least=0,
    )
    shutdown_grace: float = flag(
        1.0, "seconds for running streams to end after SIGTERM and --drain-delay", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig(ModelConfig):
    """`pagewire engine`: scheduler, block pool, step loop; starts and watches its workers."""

    listen: str = flag("", "address for frontends (ipc:///folder/frontends.ipc)", metavar="ADDRESS")
    listen_workers: str = flag("", "address for workers (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    metrics_model_name: str = flag(
        "", "model_name of --metrics-names vllm; default: the name of --model", metavar="NAME"
    )
    external_workers: bool = flag(False, "wait for workers that are started separately")
    device: Device = flag("auto", "where to compute; simulated: without a model", common=True)
    profile: str = flag("h200", "hardware to simulate: h200, cpu or instant", metavar="NAME")
    dtype: Dtype = flag("auto", "type of weights and KV cache; auto: the checkpoint's", common=True)
    quantization: Quantization = flag(
        "none",
        "weights, converted from 16 bits at load: int8; on a CPU int4, with two levels of scales; on CUDA"
        " int4-g32, with a scale for 32 inputs; on a CPU activations have 8 bits then, on CUDA 16",
    )
    no_quantize_head: bool = flag(False, "with --quantization: keep the head in 16 bits; otherwise it has 8")
    kv_cache_dtype: KVCacheDtype = flag(
        "auto",
        "type of keys and values; auto: that of activations; fp8_e4m3: 8 bits, half the memory of 16, not for"
        " models with latent attention or states",
    )
    cpu_kernels: str = flag(
        "auto",
        "instruction set that a CPU computes with: avx2, avx2_vnni, avx512, avx512_vnni, avx512_vbmi,"
        " avx512_bf16, neon, neon_dot, neon_bf16;"
        " auto: the best it has; none: no kernels, torch computes",
        metavar="SET",
    )
    load_format: LoadFormat = flag("auto", "dummy: random weights")
    model_impl: ModelImpl = flag(
        "auto",
        "what computes the model; native: a family of docs/models.md; transformers: that library's code;"
        " auto: native where there is a family (needs the extra `transformers` where there is none)",
    )
    trust_remote_code: bool = flag(
        False, "run Python code that the checkpoint brings (--model-impl transformers)"
    )
    speculate: str = flag(
        "",
        "draft tokens and verify several per step, with the same output: lookup[:tokens=7,batch=16] drafts"
        " what followed before, with shared=N also in the tenant's last N tokens of output,"
        " draft:MODEL[,tokens=4] what a smaller model samples, heads:HEAD[,tokens=4] what an EAGLE-3 head"
        " samples, grammar what a grammar forces, as the others"
        " do too; tokens: most per row and step; batch: most of all decoding rows, on a CPU 8",
        metavar="METHOD",
    )
    max_model_len: int = flag(
        0, "context length in tokens; 0: the model's", common=True, at_least=0, at_most=MAX_COUNT
    )
    max_num_seqs: int = flag(
        256, "maximum number of running sequences", common=True, at_least=1, at_most=MAX_COUNT
    )
    max_num_batched_tokens: int = flag(
        2048, "maximum number of tokens per step", at_least=1, at_most=MAX_COUNT
    )
    max_num_queued_reqs: int = flag(
        2048,
        "maximum number of queued requests; more are refused with a retry delay; 0: no limit",
        at_least=0,
        at_most=MAX_COUNT,
    )
    max_num_queued_tokens: int = flag(
        4_000_000,
        "maximum number of queued tokens; more are refused; 0: no limit",
        at_least=0,
        at_most=(1 << 64) - 1,
    )
    max_queue_wait: float = flag(
        60.0,
        "seconds; requests predicted to wait longer are refused at once; 0: no limit",
        at_least=0,
        at_most=MAX_COUNT,
    )
    block_size: int = flag(16, "tokens per KV block", at_least=1, at_most=MAX_COUNT)
    kv_cache_memory: float = flag(
        0.0,
        "KV cache per engine in GiB; 0: automatic",
        common=True,
        at_least=0,
        at_most=1 << 20,
        metavar="GIB",
    )
    num_blocks: int = flag(
        0, "KV blocks, in place of --kv-cache-memory; 0: as that says", at_least=0, at_most=MAX_COUNT
    )
    threads: int = flag(
        0,
        "CPU threads of the worker; 0: one per core that it may use, one for a small model",
        at_least=0,
    )
    worker_cores: str = flag("", "CPU cores of the worker, such as 1-3,6; default: all", metavar="LIST")
    lora: tuple[str, ...] = flag(
        (),
        "an adapter that is loaded at the start and stays: a folder or Hugging Face name; may be repeated",
        metavar="NAME=FOLDER",
    )
    lora_folder: str = flag(
        "", "folder of adapters: one is loaded when a request first names its subfolder", metavar="FOLDER"
    )
    lora_hub: tuple[str, ...] = flag(
        (),
        "organisation or user of the Hugging Face Hub whose adapters LoadAdapter may download; may be"
        " repeated; default: none",
        metavar="NAME",
    )
    download_dir: str = flag(
        "",
        "folder for models and adapters of the Hugging Face Hub; default: its cache (HF_HOME)",
        metavar="FOLDER",
    )
    lora_memory: float = flag(
        4.0,
        "GiB for adapters; the least recently used are dropped",
        at_least=0,
        at_most=1 << 20,
        metavar="GIB",
    )
    max_loras: int = flag(
        0,
        "most adapters in one step on a GPU: requests with others wait for their turn; 0: 8 where there is"
        " --lora, --lora-folder or --lora-hub",
        at_least=0,
        at_most=MAX_COUNT,
    )
    gpu_memory_utilization: float = flag(0.9, "share of the GPU's memory to use", at_least=0.05, at_most=1)
    swap_space: float = flag(
        0.0,
        "GiB of host memory for KV blocks of preempted sequences; 0: recompute them",
        at_least=0,
        at_most=1 << 20,
    )
    state_checkpoints: int = flag(
        16,
        "states of prompts to keep for the prefix cache, of models with linear attention or Mamba-2; each"
        " has the size of a sequence's state; 0: such models have no prefix cache",
        at_least=0,
        at_most=1 << 16,
    )
    data_parallel_size: int = flag(
        1, "engine cores on this host, which share its CPU and memory", at_least=1, at_most=64
    )
    tensor_parallel_size: int = flag(1, "GPUs per layer (planned: more than 1)", at_least=1, at_most=1024)
    pipeline_parallel_size: int = flag(1, "groups of layers (planned: more than 1)", at_least=1)
    dummy_seed: int = flag(0, "seed of the weights of --load-format dummy", at_least=0, at_most=(1 << 64) - 1)
    enforce_eager: bool = flag(False, "do not capture CUDA graphs")
    fast_matmul: bool = flag(
        False, "on a GPU, multiply by its matrix library: outputs then depend on batch mates in the last bits"
    )
    no_structured_output: bool = flag(
        False, "refuse structured output: the worker starts without what masks tokens by grammars"
    )
    no_prefix_cache: bool = flag(False, "do not reuse keys and values of common prefixes")
    scheduling: Scheduling = flag("ahead", "ahead: submit a step while the previous one runs; sync: after it")
    burst_ms: float = flag(
        20.0,
        "most milliseconds of decoding whose tokens come together, on a CPU, while no request waits;"
        " 0: each token by itself",
        at_least=0.0,
        at_most=1000.0,
    )
    record: str = flag("", "record the scheduler's inputs and decisions to this file", metavar="FILE")
    record_tokens: bool = flag(False, "with --record: also token ids, which reveal prompts and outputs")
    policy: Policy = flag(
        "fair", "queue order; fair: priority, then the tenant served least; fcfs: first come, first served"
    )
    preempt_rows: bool = flag(
        False, "let requests of a better class take rows from running ones of a worse class"
    )
    no_row_sharing: bool = flag(
        False, "leave rows to a tenant that holds more than its share while another one waits"
    )
    tenant_weight: tuple[str, ...] = flag(
        (),
        "weight of a tenant (default 1); may be repeated; a mapping in a file",
        pairs=True,
        metavar="NAME=X",
        at_least=0.001,
        at_most=1000,
    )
    prompt_token_weight: float = flag(
        1.0, "cost of a computed prompt token in fair queueing", at_least=0, at_most=1000
    )
    output_token_weight: float = flag(
        2.0, "cost of an output token in fair queueing", at_least=0.001, at_most=1000
    )
    hang_timeout: float = flag(
        3.0,
        "seconds without progress after which a process counts as hung and is killed; longer for long steps "
        "of the worker; 0: never",
        at_least=0,
        metavar="SECONDS",
    )
    parent_starts_worker: bool = flag(
        False,
        "have the parent process start the worker, and keep it for the next engine core: see pagewire serve",
    )
    worker_fault: tuple[str, ...] = flag(
        (),
        "test: the worker's --fault-NAME=X, for a simulated device or a CPU; may be repeated",
        pairs=True,
        metavar="NAME=X",
    )


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """`pagewire worker`: executes the steps of an engine core, which sends all other settings."""

    engine: str = flag("", "address of the engine core (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    rank: int = flag(0, "rank in the parallel group", at_least=0)
    threads: int = flag(0, "CPU threads; 0: one per core that this process may use", at_least=0)
    cores: str = flag("", "CPU cores reserved for this process, such as 1-3,6; default: all", metavar="LIST")
    standby: str = flag(
        "",
        "import what computes, with kernels of this instruction set or auto, and fork workers",
        metavar="SET",
    )
    outlives_core: bool = flag(
        False,
        "serve the next engine core at the same address when this one is gone: see pagewire serve",
    )
    # For tests of processes that depend on a worker; simulated devices and CPUs only.
    fault_die_at_step: int = flag(0, "test: kill itself at this step; 0: never", at_least=0)
    fault_hang_at_step: int = flag(0, "test: stop answering at this step; 0: never", at_least=0)
    fault_hold_gil_at_step: int = flag(
        0, "test: stop answering at this step, with all threads stopped; 0: never", at_least=0
    )
    fault_slow_factor: float = flag(1.0, "test: multiply the duration of steps", at_least=0)
    fault_die_on_token: int | None = flag(
        None, "test: kill itself when a prompt contains this token", at_least=0, metavar="ID"
    )
    fault_die_at_output: int = flag(
        0, "test: with --fault-die-on-token: after this many output tokens", at_least=0
    )
    fault_die_probability: float = flag(
        1.0, "test: probability of the two faults above", at_least=0, at_most=1
    )

    @property
    def fails_on_purpose(self) -> bool:
        """True if any --fault flag is set."""
        faults = [field for field in fields(self) if field.name.startswith("fault_")]
        return any(getattr(self, field.name) != field.default for field in faults)


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(CommonConfig):
    """`pagewire gateway`: smg on the loopback address, in front of frontends with --vllm-engine."""

    port: int = flag(30000, "HTTP port of smg", common=True, at_least=1, at_most=65535)
    backend: tuple[str, ...] = flag(
        ("127.0.0.1:50051",),
        "HOST:PORT of a frontend; may be repeated",
        common=True,
        metavar="ADDRESS",
    )
    shutdown_grace: float = flag(1.0, "seconds for running requests to end after SIGTERM", at_least=0)
    hang_timeout: float = flag(
        10.0,
        "seconds without an answer after which smg counts as hung and is killed; 0: never",
        at_least=0,
        metavar="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class ServeConfig(FrontendConfig, EngineConfig):
    """`pagewire serve`: frontends, engine cores and workers on this host, until Ctrl-C."""

    frontends: int = flag(1, "frontend processes; 0: none, see --listen", common=True, at_least=0, at_most=64)
    listen: str = flag(
        "",
        "address of the engine core for frontends of other containers or hosts (ipc:///folder/frontends.ipc,"
        " or tcp://HOST:PORT with --curve-key)",
        metavar="ADDRESS",
    )
    data_parallel_size: int = flag(
        1,
        "engine cores; streams survive the death of one",
        common=True,
        at_least=1,
        at_most=64,
    )
    revision: str = flag(
        "",
        "branch, tag or commit of a model on the Hugging Face Hub; default: main",
        metavar="NAME",
    )
    api_key: tuple[str, ...] = flag(
        (),
        "key that calls must send as a bearer token (PAGEWIRE_API_KEY keeps it out of the list of processes);"
        " may be repeated; all keys belong to the tenant `default`; --auth-file has tenants and roles",
        metavar="KEY",
    )
    gateway: int | None = flag(
        None,
        "HTTP port of smg on 127.0.0.1, a gateway in front of all frontends (needs the extra `gateway`);"
        " 0: any; default: none",
        at_least=0,
        at_most=65535,
        metavar="PORT",
    )
    no_pinning: bool = flag(
        False,
        "let all processes use all CPU cores; default: reserve cores for workers, if there are enough",
    )
    no_restart: bool = flag(False, "end the service when one of its processes dies")
    no_standby: bool = flag(
        False,
        "keep no processes in reserve (--standbys 0): saves memory, and restarts take longer",
    )
    standbys: int = flag(
        2,
        "processes that have imported everything, and fork the next one when an engine core, a worker, or a "
        "frontend that is alone dies; for each of these",
        at_least=0,
        at_most=8,
    )
    max_deaths: int = flag(
        5, "deaths of one process within a minute after which the service ends", at_least=1
    )
    max_restart_pause: float = flag(
        10.0, "longest pause before a process is restarted", at_least=0, metavar="SECONDS"
    )

    DECIDED: ClassVar[frozenset[str]] = frozenset(
        {
            "curve_key",
            "engine",
            "external_workers",
            "http_socket",
            "listen_workers",
            "loopback_port",
            "metrics_model_name",
            "parent_starts_worker",
            "process_name",
            "reuse_port",
            "standby",
            "worker_cores",
        }
    )
    """Fields that the supervisor sets for its children: no flags of `pagewire serve`."""
