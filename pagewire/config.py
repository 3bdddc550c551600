"""Configuration: one frozen dataclass per process; the command line is made from its fields.

Nothing writes to a configuration. Facts that are found at start-up (block count, real context
length) travel up in the `Ready` and `Welcome` messages. Precedence of a value: flag, environment
variable `PAGEWIRE_NAME`, configuration file, default.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Device = Literal["auto", "cpu", "cuda", "simulated"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
Scheduling = Literal["sync", "ahead"]
LogLevel = Literal["debug", "info", "warning", "error"]

DEMO_MODEL = "demo"
"""Name of the model that ships with the package."""


def flag(default: Any, help: str, *, common: bool = False, metavar: str | None = None) -> Any:
    """A field that is also a flag. `common` ones are shown by `--help`, the rest by `--help-all`."""
    return field(default=default, metadata={"help": help, "common": common, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """What every process takes."""

    log_level: LogLevel = flag("info", "least severe log lines to print")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(CommonConfig):
    """What both a frontend and an engine core must agree on."""

    model: str = flag(
        DEMO_MODEL, "folder of a Hugging Face checkpoint; the demo model when left out", metavar="MODEL"
    )


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ModelConfig):
    """`pagewire frontend`: gRPC server, tokenizer, streams."""

    host: str = flag("127.0.0.1", "address to listen on", common=True)
    port: int = flag(50051, "gRPC port; 0: a free one", common=True)
    served_model_name: str = flag("", "name that requests use; default: the folder's name", common=True)
    engine: str = flag("", "address of the engine core (ipc:///folder/frontends.ipc)", metavar="ADDRESS")
    reuse_port: bool = flag(False, "let several frontends listen on one port")
    reflection: bool = flag(True, "serve gRPC reflection")
    tokenizer_threads: int = flag(2, "threads that tokenize and render templates")
    max_request_bytes: int = flag(16 << 20, "largest gRPC message to accept")
    max_sequences: int = flag(64, "largest n of a request")
    max_stop_strings: int = flag(64, "most stop strings of a request")
    chat_template: str = flag("", "file with a chat template that replaces the checkpoint's", metavar="FILE")
    shutdown_grace: float = flag(1.0, "seconds that running streams get after the first SIGTERM")


@dataclass(frozen=True, kw_only=True)
class EngineConfig(ModelConfig):
    """`pagewire engine`: scheduler, block pool, step loop; starts and watches its workers."""

    listen: str = flag("", "address for frontends (ipc:///folder/frontends.ipc)", metavar="ADDRESS")
    listen_workers: str = flag("", "address for workers (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    external_workers: bool = flag(False, "wait for workers that somebody else starts")
    device: Device = flag("auto", "where to compute", common=True)
    dtype: Dtype = flag("auto", "type of weights and KV cache; auto: the checkpoint's", common=True)
    load_format: LoadFormat = flag("auto", "dummy: random weights")
    max_model_len: int = flag(0, "context length in tokens; 0: the model's", common=True)
    max_num_seqs: int = flag(256, "sequences that run at once", common=True)
    max_num_batched_tokens: int = flag(2048, "tokens per step", common=True)
    block_size: int = flag(16, "tokens per KV block")
    num_blocks: int = flag(0, "KV blocks; 0: what fits", common=True)
    gpu_memory_utilization: float = flag(0.9, "part of the GPU's memory to use")
    swap_space: float = flag(0.0, "GiB of host memory for swapped blocks (planned)")
    tensor_parallel_size: int = flag(1, "GPUs per layer (planned: more than 1)")
    pipeline_parallel_size: int = flag(1, "groups of layers (planned: more than 1)")
    seed: int = flag(0, "seed of dummy weights")
    enforce_eager: bool = flag(False, "no captured graphs")
    no_prefix_cache: bool = flag(False, "do not reuse the KV of equal prefixes (today always so)")
    scheduling: Scheduling = flag("sync", "ahead: plan a step while the last one runs (planned)")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """`pagewire worker`: everything else arrives in the core's Initialize."""

    engine: str = flag("", "address of the engine core (ipc:///folder/workers.ipc)", metavar="ADDRESS")
    rank: int = flag(0, "rank in the parallel group")
    threads: int = flag(0, "CPU threads; 0: the cores that this process may use")


@dataclass(frozen=True, kw_only=True)
class ServeConfig(FrontendConfig, EngineConfig):
    """`pagewire serve`: all of it on one host."""

    frontends: int = flag(1, "frontend processes", common=True)
