"""Flags of vLLM, llama.cpp and TGI, as a user of those servers types them.

A flag that means the same as one of ours is taken for it. A flag for what is always on here, or is read from
the checkpoint, is accepted and has no effect. Both are logged. Every other one that has a counterpart is
refused with its name. docs/coming-from.md lists them all.
"""

from collections.abc import Callable, Collection, Sequence

RENAMED = {
    # vLLM
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "--num-gpu-blocks-override": "--num-blocks",
    "--api-server-count": "--frontends",
    "-asc": "--frontends",
    "--ssl-certfile": "--tls-cert",
    "--ssl-keyfile": "--tls-key",
    "--ssl-ca-certs": "--tls-client-ca",
    "--otlp-traces-endpoint": "--otlp-endpoint",
    "--uvicorn-log-level": "--log-level",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    # llama.cpp
    "-m": "--model",
    "-c": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "-np": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "-t": "--threads",
    "--chat-template-file": "--chat-template",
    "-a": "--served-model-name",
    "--alias": "--served-model-name",
    # TGI
    "--model-id": "--model",
    "--num-shard": "--tensor-parallel-size",
    "--max-total-tokens": "--max-model-len",
    "--max-batch-prefill-tokens": "--max-num-batched-tokens",
}
"""Flags of other servers, and the flag of the same meaning here."""

WITHOUT_EFFECT = {
    "--enable-prefix-caching": "it is on by default",
    "--enable-chunked-prefill": "prompts are always computed in chunks",
    "--enable-auto-tool-choice": "it is always on",
    "--enable-prompt-tokens-details": "it is always on",
    "--disable-log-requests": "requests are not logged",
    "--no-enable-log-requests": "requests are not logged",
    "--disable-log-stats": "statistics are metrics, not log lines",
    "--async-scheduling": "it is on by default",
    "--jinja": "the checkpoint's chat template is always used",
    "--no-webui": "--openai-port alone serves the console",
}
"""Switches of other servers for what is so here anyway."""

WITHOUT_EFFECT_OF_A_VALUE = {
    "--tool-call-parser": "the format of calls is read from the checkpoint; --tool-format NAME overrides it",
    "--reasoning-parser": "the format of thoughts is read from the checkpoint; --reasoning-format NAME"
    " overrides it",
    "--distributed-executor-backend": "one host runs its own processes",
}
"""The same, of flags that take a value."""

COUNTERPARTS = {
    "--scheduling-policy": "--policy fair|fcfs",
    "--speculative-config": "--speculate METHOD",
    "--kv-cache-memory-bytes": "--kv-cache-memory GIB",
    "--gpu-layers": "--device cuda, which holds all layers on the GPU",
    "-ngl": "--device cuda, which holds all layers on the GPU",
    "--runner": "--pooling-type last|mean, for embeddings",
    "--pooler-config": "--pooling-type last|mean",
    "--task": "--pooling-type last|mean, for embeddings",
    "--enable-lora": "no flag: LoRA adapters are not supported yet",
    "--lora-modules": "no flag: LoRA adapters are not supported yet",
    "--max-loras": "no flag: LoRA adapters are not supported yet",
    "--limit-mm-per-prompt": "no flag: images are not supported yet",
    "--enable-expert-parallel": "no flag: a model runs in one worker",
    "--kv-transfer-config": "no flag: prefill and decoding run in one engine",
    "--cpu-offload-gb": "no flag: weights are in one memory",
    "--revision": "MODEL@REVISION",
    "--tokenizer": "no flag: the tokenizer is the checkpoint's",
    "--tokenizer-mode": "no flag: the tokenizer is the checkpoint's",
    "--download-dir": "the variable HF_HOME",
    "--hf-overrides": "no flag: edit the checkpoint's config.json",
    "--generation-config": "no flag: defaults come from the checkpoint's generation_config.json",
    "--allowed-origins": "a reverse proxy that adds CORS headers",
    "--root-path": "a reverse proxy that removes the prefix",
    "--quantize": "--quantization int8|int4; a quantized checkpoint needs no flag",
    "--max-input-tokens": "--max-model-len N, of prompt and output together",
    "--hostname": "--host ADDRESS",
}
"""What to use in place of other flags of these servers."""


def translate(arguments: Sequence[str], options: Collection[str], note: Callable[[str], None]) -> list[str]:
    """Returns the arguments with flags of other servers replaced or left out.

    options: the flags of the command; one of these always means itself. note: called with a sentence for each
    flag that was changed.
    """
    result: list[str] = []
    words = iter(arguments)
    for word in words:
        name, sign, value = word.partition("=")
        target = RENAMED.get(name)
        if name in options or not name.startswith("-"):
            result.append(word)
        elif target in options:
            note(f"{name} is {target} here")
            result.append(f"{target}{sign}{value}")
        elif name in WITHOUT_EFFECT and value.lower() in ("", "true", "1") and "--model" in options:
            note(f"{name} has no effect: {WITHOUT_EFFECT[name]}")
        elif name in WITHOUT_EFFECT_OF_A_VALUE and "--model" in options:
            note(f"{name} has no effect: {WITHOUT_EFFECT_OF_A_VALUE[name]}")
            if not sign:
                next(words, None)
        else:
            result.append(word)
    return result


VALUES = {
    "dtype": {
        "half": "float16",
        "float": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp32": "float32",
    },
    "kv_cache_dtype": {"fp8": "fp8_e4m3"},
    "load_format": {"safetensors": "auto"},
    "model_impl": {"vllm": "native"},
    "log_level": {"critical": "error", "trace": "debug"},
    "max_model_len": {"auto": "0", "-1": "0"},
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
