"""Flags of engine cores, which tell their workers."""

from dataclasses import dataclass
from typing import Literal

from pagewire.config.base import MAX_COUNT, ModelConfig, flag
from pagewire.config.nodes import NodesConfig

Device = Literal["auto", "cpu", "cuda", "simulated"]
Quantization = Literal["none", "int8", "int4", "int4-g32"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDtype = Literal["auto", "fp8_e4m3"]
LoadFormat = Literal["auto", "dummy"]
ModelImpl = Literal["auto", "native", "transformers"]
Role = Literal["both", "prefill", "decode"]
Scheduling = Literal["ahead", "sync"]
Policy = Literal["fair", "fcfs"]
KvTransfer = Literal["tcp", "nixl"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig(ModelConfig, NodesConfig):
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
    media_memory: float = flag(
        4.0,
        "GiB for the images of requests in flight, as the encoder takes them; more requests are refused",
        at_least=0,
        at_most=1 << 20,
        metavar="GIB",
    )
    encoder_cache_tokens: int = flag(
        0,
        "image vectors that the worker keeps; 0: --max-num-batched-tokens, or what the largest image needs",
        at_least=0,
        at_most=MAX_COUNT,
    )
    max_num_encoder_tokens: int = flag(
        0,
        "image vectors that a step encodes, except for one larger image; 0: half as long as its tokens take",
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
    dummy_seed: int = flag(0, "seed of the weights of --load-format dummy", at_least=0, at_most=(1 << 64) - 1)
    enforce_eager: bool = flag(False, "do not capture CUDA graphs")
    fast_matmul: bool = flag(
        False, "on a GPU, multiply by its matrix library: outputs then depend on batch mates in the last bits"
    )
    no_structured_output: bool = flag(
        False, "refuse structured output: the worker starts without what masks tokens by grammars"
    )
    no_prefix_cache: bool = flag(False, "do not reuse keys and values of common prefixes")
    prefix_cache_key: str = flag(
        "", "key that services of one model share: hashes of blocks are then equal in all", metavar="FILE"
    )
    kv_transfer: KvTransfer = flag(
        "tcp",
        "what carries KV blocks to other engine cores; tcp: on this host; nixl: from memory to memory, over"
        " hosts with --trusted-network (needs the extra `nixl`)",
    )
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
    role: Role = flag(
        "both",
        "prefill: requests go on at cores that decode when they have a token, with copies of their KV blocks;"
        " decode: get these; with one --prefix-cache-key",
    )
    drain_timeout: float = flag(
        0.0,
        "seconds that the first SIGTERM leaves: streams go on at other engine cores, which copy their KV"
        " blocks; 0: the process ends at once, and other cores compute them again",
        at_least=0,
        at_most=3600,
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

    @property
    def keeps_blocks_by(self) -> str:
        """The flag with which no other engine core can copy KV blocks of this one; "": none is set."""
        flags = {
            "--no-prefix-cache": self.no_prefix_cache,
            "--record": bool(self.record),
            "--tensor-parallel-size": self.tensor_parallel_size > 1,
            "--pipeline-parallel-size": self.pipeline_parallel_size > 1,
            "--device cuda": self.device == "cuda",
        }
        return next((flag for flag, is_set in flags.items() if is_set), "")
