"""Flags of vLLM, llama.cpp and TGI, as a user of those servers types them, and variables of these and Ollama.

A flag that means the same as one of ours is taken for it. A flag for what is always on here, or is read from
the checkpoint, is accepted and has no effect. Both are logged. Every other one is refused with its
counterpart. docs/coming-from.md lists them all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

RENAMED = {
    # vLLM
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "--num-gpu-blocks-override": "--num-blocks",
    "--distributed-executor-backend": "--launcher",
    "--api-server-count": "--frontends",
    "-asc": "--frontends",
    "--ssl-certfile": "--tls-cert",
    "--ssl-keyfile": "--tls-key",
    "--ssl-ca-certs": "--tls-client-ca",
    "--otlp-traces-endpoint": "--otlp-endpoint",
    "--uvicorn-log-level": "--log-level",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    "--no-async-scheduling": "--scheduling=sync",
    # llama.cpp
    "-m": "--model",
    "-c": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "-np": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "-b": "--max-num-batched-tokens",
    "--batch-size": "--max-num-batched-tokens",
    "-t": "--threads",
    "-s": "--seed",
    "--pooling": "--pooling-type",
    "--chat-template-file": "--chat-template",
    "-a": "--served-model-name",
    "--alias": "--served-model-name",
    "--ssl-cert-file": "--tls-cert",
    "--ssl-key-file": "--tls-key",
    "-v": "--log-level=debug",
    "--verbose": "--log-level=debug",
    "--log-disable": "--log-level=error",
    # TGI
    "--model-id": "--model",
    "--num-shard": "--tensor-parallel-size",
    "--max-total-tokens": "--max-model-len",
    "--max-batch-prefill-tokens": "--max-num-batched-tokens",
    "--max-batch-size": "--max-num-seqs",
    "--max-best-of": "--max-sequences",
    "--max-stop-sequences": "--max-stop-strings",
    "--max-top-n-tokens": "--max-logprobs",
    "--validation-workers": "--tokenizer-threads",
    "--payload-limit": "--max-request-bytes",
    "--cuda-memory-fraction": "--gpu-memory-utilization",
    "--huggingface-hub-cache": "--download-dir",
    "--prometheus-port": "--http-port",
    "--json-output": "--log-format=json",
}
"""Flags of other servers, and the flag of the same meaning here; switches, and the flag with its value."""

WITHOUT_EFFECT = {
    "--enable-prefix-caching": "it is on by default",
    "--enable-chunked-prefill": "prompts are always computed in chunks",
    "--enable-auto-tool-choice": "it is always on",
    "--enable-prompt-tokens-details": "it is always on",
    "--disable-log-requests": "requests are not logged",
    "--no-enable-log-requests": "requests are not logged",
    "--disable-uvicorn-access-log": "requests are not logged",
    "--disable-log-stats": "statistics are metrics, not log lines",
    "--async-scheduling": "it is on by default",
    "--jinja": "the checkpoint's chat template is always used",
    "--no-webui": "--openai-port alone serves the console",
    "-cb": "sequences are always batched continuously",
    "--cont-batching": "sequences are always batched continuously",
    "-fa": "attention kernels are chosen automatically",
    "--flash-attn": "attention kernels are chosen automatically",
    "--no-context-shift": "no token is ever dropped from a context",
    "--metrics": "they are on --http-port",
    "--slots": "pagewire requests shows what is running",
}
"""Switches of other servers for what is so here anyway."""

WITHOUT_EFFECT_OF_A_VALUE = {
    "--tool-call-parser": "the format of calls is read from the checkpoint; --tool-format NAME overrides it",
    "--reasoning-parser": "the format of reasoning is read from the checkpoint; --reasoning-format NAME"
    " overrides it",
    "--tokenizer-mode": "the files of the tokenizer say what it is",
    "--chat-template-content-format": "it is read from the template",
    "--structured-outputs-config": "llguidance enforces all forms",
    "--guided-decoding-backend": "llguidance enforces all forms",
    "--compilation-config": "kernels are compiled at the first start",
    "-O": "kernels are compiled at the first start",
    "-cc": "kernels are compiled at the first start",
    "--max-log-len": "requests are not logged",
    "-ub": "kernels choose their own tiles",
    "--ubatch-size": "kernels choose their own tiles",
    "--cache-reuse": "common prefixes are always reused",
    "--waiting-served-ratio": "waiting prompts join every step",
    "--max-waiting-tokens": "waiting prompts join every step",
    "--usage-stats": "nothing is reported to anyone",
}
"""The same, of flags that take a value."""

_LORA = "--lora NAME=FOLDER, or --lora-folder FOLDER, whose subfolders requests may name"
_IMAGES = "no flag: up to 16 images in a prompt, with the settings of the checkpoint"
_ONE_WORKER = "no flag: a model runs in one worker"
_ONE_DEVICE = (
    "no flag: a model runs on the first device of CUDA_VISIBLE_DEVICES; with --tensor-parallel-size or"
    " --pipeline-parallel-size on as many"
)
_CORS = "a reverse proxy that adds CORS headers"
_EMBEDDINGS = "--pooling-type last or mean, for embeddings"
_DRAFT = "--speculate draft:MODEL,tokens=N"
_DEFAULTS = "--override-generation-config '{\"temperature\": 0.5}', or the field of requests"
_CACHE = "--kv-cache-dtype fp8_e4m3, for keys and values"
_GPU = "--device cuda, which holds all layers on the GPU"
_HUB = "MODEL, the hub name of a repository with safetensors; of a GGUF file, its path after hf download"
_ROPE = "--hf-overrides '{\"rope_parameters\": {...}}'"
_LENGTH = "--max-model-len N, of prompt and output together"

COUNTERPARTS = {
    # vLLM
    "--scheduling-policy": "--policy fair or fcfs",
    "--speculative-config": "--speculate METHOD",
    "--kv-cache-memory-bytes": "--kv-cache-memory GIB",
    "--runner": _EMBEDDINGS,
    "--task": _EMBEDDINGS,
    "--convert": _EMBEDDINGS,
    "--pooler-config": _EMBEDDINGS,
    **dict.fromkeys(("--enable-lora", "--lora-modules", "--max-lora-rank"), _LORA),
    "--allowed-media-domains": "--media-hosts NAME, once for each",
    "--limit-mm-per-prompt": _IMAGES,
    "--mm-processor-kwargs": _IMAGES,
    "--enable-expert-parallel": "no flag: --tensor-parallel-size gives each rank whole experts",
    "--node-rank": "pagewire serve on the first host, pagewire ranks on each other one",
    "--data-parallel-address": "pagewire frontend --engine ADDRESS, for engines on other hosts",
    "--headless": "--frontends 0 --listen ADDRESS",
    "--kv-transfer-config": "no flag: prefill and decoding run in one engine",
    "--cpu-offload-gb": "no flag: weights are in one memory",
    "--tokenizer-revision": "--revision NAME, of the whole repository",
    "--code-revision": "--revision NAME, of the whole repository",
    "--hf-token": "the variable HF_TOKEN",
    "--rope-scaling": _ROPE,
    "--rope-theta": _ROPE,
    **dict.fromkeys(
        ("--allowed-origins", "--allowed-methods", "--allowed-headers", "--allow-credentials"), _CORS
    ),
    "--root-path": "a reverse proxy that removes the prefix",
    "--uds": "--openai-host and --openai-port, behind a reverse proxy with that socket",
    "--ssl-cert-reqs": "--tls-client-ca FILE, which requires client certificates",
    "--enable-log-requests": "pagewire requests, which lists them; their texts are never logged",
    "--enable-force-include-usage": "the field stream_options.include_usage of requests",
    "--enable-sleep-mode": "no flag: a service keeps its memory until it ends",
    "--response-role": "no flag: answers have the role assistant",
    **dict.fromkeys(("--num-scheduler-steps", "--stream-interval"), "--burst-ms MILLISECONDS"),
    # llama.cpp
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"), _HUB),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), _GPU),
    **dict.fromkeys(("-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"), _ONE_DEVICE),
    **dict.fromkeys(("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"), _CACHE),
    **dict.fromkeys(("-md", "--model-draft", "--draft", "--draft-max", "--draft-n"), _DRAFT),
    **dict.fromkeys(("--embedding", "--embeddings"), _EMBEDDINGS),
    **dict.fromkeys(("--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty"), _DEFAULTS),
    **dict.fromkeys(("-n", "--predict", "--n-predict"), "the field max_tokens of requests"),
    **dict.fromkeys(("--rope-scale", "--rope-freq-base", "--yarn-orig-ctx"), _ROPE),
    "--mmproj": _IMAGES,
    "--mlock": "no flag: the memory of weights is not locked",
    "--no-mmap": "no flag: the format of the weights decides whether they are copied",
    "--api-key-file": "--auth-file FILE, whose lines pagewire token makes",
    "--threads-http": "--frontends N",
    "--timeout": "--write-timeout SECONDS, and the deadlines of requests",
    "-to": "--write-timeout SECONDS, and the deadlines of requests",
    "--context-shift": "no flag: a full context ends the answer, no token is dropped",
    "--reasoning-budget": "the field thinking_token_budget of requests",
    # TGI
    "--quantize": "--quantization int8 or int4; a quantized checkpoint needs no flag",
    "--max-input-tokens": _LENGTH,
    "--max-input-length": _LENGTH,
    "--max-batch-total-tokens": "--kv-cache-memory GIB; the ready line says how many blocks that is",
    "--hostname": "--openai-host ADDRESS for HTTP, --host ADDRESS for gRPC",
    "-p": "--openai-port N for HTTP, --port N for gRPC",
    "--sharded": _ONE_WORKER,
    "--cuda-graphs": "--enforce-eager, which turns them off",
    "--tokenizer-config-path": "--chat-template FILE",
    "--cors-allow-origin": _CORS,
    "--lora-adapters": _LORA,
    "--rope-factor": _ROPE,
}
"""What to use in place of other flags of these servers."""

KEY_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY")
"""Variables with a key that calls must send. Ignored, they would leave a service open that its operator
believes to be closed."""

VARIABLES = {
    "OLLAMA_HOST": "--openai-host and --openai-port",
    "OLLAMA_MODELS": "MODEL, and --download-dir for what is downloaded",
    "OLLAMA_CONTEXT_LENGTH": "--max-model-len",
    "OLLAMA_NUM_PARALLEL": "--max-num-seqs",
    "OLLAMA_MAX_QUEUE": "--max-num-queued-reqs",
    "OLLAMA_MAX_LOADED_MODELS": "a service for each model",
    "OLLAMA_KEEP_ALIVE": "nothing: the model stays in memory until the service ends",
    "OLLAMA_KV_CACHE_TYPE": "--kv-cache-dtype",
    "OLLAMA_FLASH_ATTENTION": "nothing: attention kernels are chosen automatically",
    "OLLAMA_ORIGINS": _CORS,
    "OLLAMA_DEBUG": "--log-level debug",
}
"""Variables of Ollama, which are not read, and what to use."""


def translate(arguments: Sequence[str], options: Collection[str], note: Callable[[str], None]) -> list[str]:
    """Returns the arguments with flags of other servers replaced or left out.

    options: the flags of the command; one of these always means itself. note: called with a sentence for each
    flag that was changed.
    """
    result: list[str] = []
    words = list(reversed(arguments))
    while words:
        word = words.pop()
        name, sign, value = word.partition("=")
        if name[:2] == "-O" and name[2:].isdecimal():  # -O3
            name, sign = "-O", "="
        target, target_sign, _ = RENAMED.get(name, "").partition("=")
        if name in options or not name.startswith("-"):
            result.append(word)
        elif target in options and not (sign and target_sign):
            note(f"{name} is {RENAMED[name]} here")
            result.append(RENAMED[name] + sign + value)
        elif name in WITHOUT_EFFECT and value.lower() in _ON and "--model" in options:
            note(f"{name} has no effect: {WITHOUT_EFFECT[name]}")
            if words and words[-1] in _STATES:  # llama.cpp's -fa on
                words.pop()
        elif name in WITHOUT_EFFECT_OF_A_VALUE and "--model" in options:
            note(f"{name} has no effect: {WITHOUT_EFFECT_OF_A_VALUE[name]}")
            if not sign and words:
                words.pop()
        else:
            result.append(word)
    return result


def keys_of(environment: Mapping[str, str], note: Callable[[str], None]) -> tuple[str, ...]:
    """Returns the keys in variables of other servers. note: called with a sentence for each variable
    of theirs that is set."""
    for variable in sorted(environment.keys() & VARIABLES.keys()):
        note(f"{variable} is not read; use {VARIABLES[variable]}")
    found = [variable for variable in KEY_VARIABLES if variable in environment]
    for variable in found:
        note(f"{variable} is --api-key here")
    return tuple(environment[variable] for variable in found)


_ON = ("", "true", "1")
_STATES = ("on", "off", "auto")

VALUES = {
    "device": {"gpu": "cuda"},
    "dtype": {
        "half": "float16",
        "float": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp32": "float32",
    },
    "kv_cache_dtype": {"fp8": "fp8_e4m3", "fp8_e4m3fn": "fp8_e4m3"},
    "load_format": {"safetensors": "auto"},
    "model_impl": {"vllm": "native"},
    "launcher": {"mp": "none", "uni": "none"},
    "log_level": {"critical": "error", "trace": "debug"},
    "max_model_len": {"auto": "0", "-1": "0"},
    "generation_config": {"vllm": "none"},
}
"""Values of other servers, by field, and the value of the same meaning here."""

CHECKPOINT_METHODS = frozenset(
    {"awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "mxfp4", "bitsandbytes", "compressed-tensors", "gguf"}
)
"""What vLLM's --quantization also takes: how a checkpoint is quantized."""

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def integer(text: str) -> int:
    """Returns the number that a text such as 4096, 32k (32,000) or 32K (32,768) stands for. Raises
    ValueError."""
    unit = _UNITS.get(text[-1:])
    if unit is None:
        return int(text)
    number = float(text[:-1]) * unit
    if not number.is_integer():
        raise ValueError(text)
    return int(number)
