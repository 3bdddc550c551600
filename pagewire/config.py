"""Configuration: one frozen dataclass per process; the command line is made from its fields.

Nothing writes to a configuration. Facts that are found at start-up (block count, real context
length) travel up in the `Ready` and `Welcome` messages. Precedence of a value: flag, environment
variable `PAGEWIRE_NAME`, configuration file, default.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

Device = Literal["auto", "cpu", "cuda", "simulated"]
Quantization = Literal["none", "int8"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
Scheduling = Literal["ahead", "sync"]
Policy = Literal["fair", "fcfs"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

DEMO_MODEL = "demo"
"""Name of the model that ships with the package."""


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
    """A field that is also a flag.

    common: shown by `--help`; the rest by `--help-all`.
    positional: may also be given without its name.
    pairs: NAME=NUMBER, as often as there are names; a mapping in a file.
    at_least, at_most: the range of a number, borders included.
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
    """What every process takes."""

    log_level: LogLevel = flag("info", "least severe log lines to print")
    log_format: LogFormat = flag("text", "of log lines; json: one object per line")
    process_name: str = flag("", "of this process, in logs and metrics", metavar="NAME")
    curve_key: str = flag(
        "", "keys for tcp:// between our processes (see: pagewire keys --help)", metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class KeysConfig:
    """`pagewire keys`: makes the keys for tcp:// between our processes: a file for engine cores, and one
    for frontends and workers."""

    folder: str = flag("", "where to write them", common=True, positional=True, metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class WatchedConfig(CommonConfig):
    """What every process takes that can be watched from outside."""

    http_host: str = flag("127.0.0.1", "address of the HTTP port")
    http_port: int | None = flag(
        None,
        "HTTP port of metrics [9464; engine: none]; 0: any; -1: none",
        common=True,
        at_least=-1,
        at_most=65535,
    )
    http_socket: str = flag("", "Unix socket for the same, for a supervisor", metavar="PATH")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(WatchedConfig):
    """What both a frontend and an engine core must agree on."""

    model: str = flag(
        DEMO_MODEL,
        "folder of a checkpoint; default: the demo model",
        common=True,
        metavar="MODEL",
        positional=True,
    )


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ModelConfig):
    """`pagewire frontend`: gRPC server, tokenizer, streams."""

    host: str = flag("127.0.0.1", "address to listen on", common=True)
    port: int = flag(50051, "gRPC port; 0: a free one", common=True, at_least=0, at_most=65535)
    served_model_name: str = flag("", "name that requests use; default: the folder's name", common=True)
    engine: tuple[str, ...] = flag(
        (),
        "address of an engine core (ipc:///folder/frontends.ipc); may be repeated; @FILE: one per line, read "
        "again when it changes",
        metavar="ADDRESS",
    )
    reuse_port: bool = flag(False, "let several frontends listen on one port")
    tls_cert: str = flag(
        "", "PEM file with the server's certificates, its own first: TLS", common=True, metavar="FILE"
    )
    tls_key: str = flag("", "PEM file with the key of --tls-cert", common=True, metavar="FILE")
    tls_client_ca: str = flag(
        "", "PEM file with who signs clients' certificates, which are then required (mTLS)", metavar="FILE"
    )
    auth_file: str = flag("", "hashed tokens: who may call (docs/security.md)", common=True, metavar="FILE")
    reflection: bool | None = flag(None, "serve gRPC reflection; default: on, but off with --auth-file")
    tokenizer_threads: int = flag(2, "threads that tokenize and render templates", at_least=1)
    max_request_bytes: int = flag(
        16 << 20, "largest gRPC message to accept", at_least=1024, at_most=(1 << 31) - 1
    )
    max_sequences: int = flag(64, "largest n, best_of and beam width of a request", at_least=1)
    max_stop_strings: int = flag(64, "most stop strings of a request", at_least=0)
    max_logprobs: int = flag(
        20, "most candidates per token in log-probabilities; -1: the whole vocabulary", at_least=-1
    )
    max_continuations: int = flag(128, "most continuations of a request to score them", at_least=1)
    resume_timeout: float = flag(
        60.0, "seconds that streams wait for an engine that died; 0: they fail at once", at_least=0
    )
    max_concurrent_requests: int = flag(
        4096, "requests that a frontend has at once; more are refused; 0: no bound", at_least=0
    )
    max_multiplexed_requests: int = flag(
        1024, "requests that one multiplexed stream has at once; more are refused", at_least=1
    )
    max_tokenizing_bytes: int = flag(
        64 << 20,
        "bytes of requests that a frontend tokenizes at once; more are refused; 0: no bound",
        at_least=0,
    )
    keepalive_time: float = flag(
        30.0, "seconds of silence after which a client is asked whether it is there", at_least=1
    )
    keepalive_timeout: float = flag(
        10.0, "seconds that it gets to answer; then it is gone, and its requests are ended", at_least=0.1
    )
    write_timeout: float = flag(
        60.0, "seconds that a client may take for a message before its stream is ended; 0: any", at_least=0
    )
    otlp_endpoint: str = flag(
        "", "collector of traces: http://HOST:PORT (needs pagewire[tracing])", metavar="URL"
    )
    trace_sample_rate: float = flag(
        1.0, "part of the requests to trace that do not come with a trace", at_least=0, at_most=1
    )
    chat_template: str = flag("", "file with a chat template that replaces the checkpoint's", metavar="FILE")
    drain_delay: float = flag(
        0.0,
        "seconds between NOT_SERVING and the first refusal, for balancers to notice; 0: there is none",
        at_least=0,
    )
    shutdown_grace: float = flag(
        1.0, "seconds that running streams get after the drain delay of a SIGTERM", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig(ModelConfig):
    """`pagewire engine`: scheduler, block pool, step loop; starts and watches its workers."""

    listen: str = flag("", "address for frontends (ipc:///folder/frontends.ipc)", metavar="ADDRESS")
    listen_workers: str = flag("", "address for workers (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    external_workers: bool = flag(False, "wait for workers that somebody else starts")
    device: Device = flag("auto", "where to compute; simulated: tokens without a model", common=True)
    profile: str = flag("h200", "machine to simulate: h200, cpu or instant", metavar="NAME")
    dtype: Dtype = flag("auto", "type of weights and KV cache; auto: the checkpoint's", common=True)
    quantization: Quantization = flag(
        "none", "int8: a CPU computes with weights of 8 bits, made at load from bfloat16"
    )
    cpu_kernels: str = flag(
        "auto",
        "instruction set that a CPU computes with: avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16;"
        " auto: the best it has; none: no kernels, torch computes",
        metavar="SET",
    )
    load_format: LoadFormat = flag("auto", "dummy: random weights")
    max_model_len: int = flag(0, "context length in tokens; 0: the model's", common=True, at_least=0)
    max_num_seqs: int = flag(256, "sequences that run at once", common=True, at_least=1)
    max_num_batched_tokens: int = flag(2048, "tokens per step", common=True, at_least=1)
    max_num_queued_reqs: int = flag(
        2048, "requests that may wait; more are refused, with the time to come back; 0: no bound", at_least=0
    )
    max_num_queued_tokens: int = flag(
        4_000_000, "tokens that may wait to be computed; more are refused; 0: no bound", at_least=0
    )
    max_queue_wait: float = flag(
        60.0, "seconds; who would wait longer, as predicted, is refused at once; 0: no bound", at_least=0
    )
    block_size: int = flag(16, "tokens per KV block", at_least=1)
    num_blocks: int = flag(0, "KV blocks; 0: what fits", common=True, at_least=0)
    threads: int = flag(
        0,
        "CPU threads of the worker; 0: one for each core that it may use, one for a small model",
        at_least=0,
    )
    worker_cores: str = flag("", "cores of the worker, such as 1-3,6; default: any", metavar="LIST")
    gpu_memory_utilization: float = flag(0.9, "part of the GPU's memory to use", at_least=0.05, at_most=1)
    swap_space: float = flag(
        0.0,
        "GiB of host memory for the KV blocks of preempted sequences; 0: compute them again",
        at_least=0,
        at_most=1 << 20,
    )
    data_parallel_size: int = flag(
        1, "engine cores on this host, which share its processors and memory", at_least=1, at_most=64
    )
    tensor_parallel_size: int = flag(1, "GPUs per layer (planned: more than 1)", at_least=1)
    pipeline_parallel_size: int = flag(1, "groups of layers (planned: more than 1)", at_least=1)
    seed: int = flag(0, "seed of dummy weights", at_least=0, at_most=(1 << 64) - 1)
    enforce_eager: bool = flag(False, "no captured graphs")
    no_prefix_cache: bool = flag(False, "do not reuse the keys and values of equal prefixes")
    scheduling: Scheduling = flag("ahead", "ahead: send a step while the one before it runs; sync: after it")
    record: str = flag("", "write what the scheduler sees and decides to this file", metavar="FILE")
    record_tokens: bool = flag(False, "with --record: token ids, too; they are what people wrote")
    policy: Policy = flag(
        "fair", "who is next: fair: priority, then the tenant that was given least; fcfs: who came first"
    )
    tenant_weight: tuple[str, ...] = flag(
        (),
        "share of a tenant, others have 1; may be repeated; a mapping in a file",
        pairs=True,
        metavar="NAME=X",
        at_least=0.001,
        at_most=1000,
    )
    prompt_token_weight: float = flag(
        1.0, "what a computed token of a prompt counts for its tenant", at_least=0, at_most=1000
    )
    output_token_weight: float = flag(
        2.0, "what a token of output counts for its tenant", at_least=0.001, at_most=1000
    )
    hang_timeout: float = flag(
        3.0,
        "seconds without progress after which a process counts as hung, and is killed; a long step of the"
        " worker gets more; 0: never",
        at_least=0,
        metavar="SECONDS",
    )
    worker_fault: tuple[str, ...] = flag(
        (),
        "test: the worker's --fault-NAME=X, for a simulated device or a CPU; may be repeated",
        pairs=True,
        metavar="NAME=X",
    )


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """`pagewire worker`: everything else arrives in the core's Initialize."""

    engine: str = flag("", "address of the engine core (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    rank: int = flag(0, "rank in the parallel group", at_least=0)
    threads: int = flag(0, "CPU threads; 0: the cores that this process may use", at_least=0)
    cores: str = flag(
        "", "cores that are for this process alone, such as 1-3,6; default: any", metavar="LIST"
    )
    # For tests of whoever depends on a worker; only where the device is simulated, or a CPU.
    fault_die_at_step: int = flag(0, "test: kill itself at this step; 0: never", at_least=0)
    fault_hang_at_step: int = flag(0, "test: stop answering at this step; 0: never", at_least=0)
    fault_hold_gil_at_step: int = flag(
        0, "test: stop answering at this step, and stop all of its threads; 0: never", at_least=0
    )
    fault_slow_factor: float = flag(1.0, "test: make steps this much longer", at_least=0)
    fault_die_on_token: int | None = flag(
        None, "test: kill itself when a prompt holds this token", at_least=0, metavar="ID"
    )
    fault_die_at_output: int = flag(
        0, "test: with the one above: not before such a request has made so many tokens", at_least=0
    )
    fault_die_probability: float = flag(
        1.0, "test: how likely it kills itself when it might", at_least=0, at_most=1
    )

    @property
    def fails_on_purpose(self) -> bool:
        """Whether any --fault flag is switched on."""
        faults = [field for field in fields(self) if field.name.startswith("fault_")]
        return any(getattr(self, field.name) != field.default for field in faults)


@dataclass(frozen=True, kw_only=True)
class ServeConfig(FrontendConfig, EngineConfig):
    """`pagewire serve`: frontends, engine cores and workers on this host, until Ctrl-C."""

    frontends: int = flag(1, "frontend processes", common=True, at_least=1, at_most=64)
    data_parallel_size: int = flag(
        1,
        "engine cores; streams of a dead one go on at another",
        common=True,
        at_least=1,
        at_most=64,
    )
    no_pinning: bool = flag(
        False,
        "let all processes use all cores; default: a worker on a CPU has its own, where there are enough",
    )
    no_restart: bool = flag(False, "end the service when one of its processes dies")
    max_deaths: int = flag(5, "deaths of one process within a minute that end the service", at_least=1)
    max_restart_pause: float = flag(
        10.0, "longest pause before a process starts again that has died again", at_least=0, metavar="SECONDS"
    )

    DECIDED: ClassVar[frozenset[str]] = frozenset(
        {
            "curve_key",
            "engine",
            "external_workers",
            "http_socket",
            "listen",
            "listen_workers",
            "process_name",
            "reuse_port",
            "worker_cores",
        }
    )
    """Fields that the supervisor decides for its children: not flags of `pagewire serve`."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """`pagewire demo`: starts everything on the demo model, streams a few answers, stops."""

    log_level: LogLevel = flag("warning", "least severe log lines to print")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What every command takes that talks to a running service."""

    address: str = flag("127.0.0.1:50051", "HOST:PORT of the service", common=True, metavar="ADDRESS")
    token_file: str = flag("", "file with the token; default: the variable PAGEWIRE_TOKEN", metavar="FILE")
    tls: bool = flag(False, "TLS, with the authorities that gRPC trusts by itself")
    tls_ca: str = flag("", "TLS, with the authorities of this PEM file", metavar="FILE")
    tls_cert: str = flag("", "PEM file with a certificate of one's own, for mTLS", metavar="FILE")
    tls_key: str = flag("", "PEM file with its key", metavar="FILE")
    tls_server_name: str = flag(
        "", "name in the server's certificate; default: of the address", metavar="NAME"
    )


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(ClientConfig):
    """How `generate` and `chat` sample; what is left out is the model's default."""

    model_name: str = flag("", "served model name; default: the only one", metavar="NAME")
    max_tokens: int | None = flag(None, "longest answer in tokens", common=True, at_least=1)
    temperature: float | None = flag(None, "0: always the likeliest token", common=True, at_least=0)
    top_p: float | None = flag(None, "sample from the likeliest tokens with this mass", common=True)
    top_k: int | None = flag(None, "sample from this many tokens; 0: all", at_least=0)
    min_p: float | None = flag(None, "least probability relative to the likeliest token", at_least=0)
    repetition_penalty: float | None = flag(None, "above 1: repeat less")
    seed: int | None = flag(None, "same seed, same answer", common=True, at_least=0, at_most=(1 << 64) - 1)
    stop: tuple[str, ...] = flag((), "stop before this text; may be repeated", common=True, metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(SamplingConfig):
    """`pagewire generate`: streams the continuation of a prompt."""

    prompt: str = flag("-", "text to continue; - reads standard input", positional=True, metavar="PROMPT")
    n: int | None = flag(None, "continuations", common=True, at_least=1)
    usage: bool = flag(False, "print token counts and speed to standard error", common=True)


@dataclass(frozen=True, kw_only=True)
class ChatConfig(SamplingConfig):
    """`pagewire chat`: a conversation, line by line."""

    system: str = flag("", "system message", common=True, metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class HealthConfig(ClientConfig):
    """`pagewire health`: exits 0 when the service takes requests."""

    wait: float = flag(0.0, "seconds to wait for that", common=True, metavar="SECONDS", at_least=0)
    http: str = flag(
        "",
        "HOST:PORT of a process's HTTP port: asks /healthz there; for an engine of its own, without gRPC",
        metavar="ADDRESS",
    )


@dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """`pagewire token`: makes a token, which is printed once; a server gets its hash."""

    action: str = flag("new", "new: make one", positional=True, metavar="new")
    tenant: str = flag("", "whose it is", common=True, metavar="NAME")
    auth_file: str = flag("", "add its line to this file; default: print it", common=True, metavar="FILE")
    role: Literal["user", "admin"] = flag("user", "admin: AdminService, too", common=True)
    weight: float | None = flag(
        None, "the tenant's share among all, relative to 1", common=True, at_least=0.001, at_most=1000
    )
    max_requests: int | None = flag(None, "in flight at an engine", common=True, at_least=1)
    max_tokens_per_minute: int | None = flag(None, "of prompt and output", common=True, at_least=1)
    expires: str = flag("", "date or time (UTC) from which on it is refused", common=True, metavar="DATE")


@dataclass(frozen=True, kw_only=True)
class DrainConfig(ClientConfig):
    """`pagewire drain`: tells one frontend to take nothing new."""

    end_after: float | None = flag(
        None,
        "seconds until what is left ends, to be continued elsewhere; default: never",
        common=True,
        metavar="SECONDS",
        at_least=0,
        at_most=24 * 3600,
    )


@dataclass(frozen=True, kw_only=True)
class ResumeConfig(ClientConfig):
    """`pagewire resume`: ends a drain."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """`pagewire replay`: compares plans with those of a recording; with settings, answers "what if"."""

    recording: str = flag("", "file that --record has written", common=True, positional=True, metavar="FILE")
    policy: Literal["recorded", "fair", "fcfs"] = flag("recorded", "what if: who is next", common=True)
    scheduling: Literal["recorded", "sync", "ahead"] = flag(
        "recorded", "what if: when a step is planned", common=True
    )
    num_blocks: int | None = flag(None, "what if: KV blocks", common=True, at_least=1)
    num_host_blocks: int | None = flag(None, "what if: blocks of the swap space", common=True, at_least=0)
    max_num_seqs: int | None = flag(None, "what if: sequences that run at once", common=True, at_least=1)
    max_num_batched_tokens: int | None = flag(None, "what if: tokens per step", common=True, at_least=1)
    no_prefix_cache: bool = flag(False, "what if: no reuse of equal prefixes", common=True)
    block_size: int | None = flag(
        None, "what if: tokens per block (needs --record-tokens)", common=True, at_least=1
    )
