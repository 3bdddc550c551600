"""A part of benchmarks/gpu/serve.py: what transformers makes of the same model on the same machine.

    python -m benchmarks.gpu.transformers FOLDER --what static --json static.json
    python -m benchmarks.gpu.transformers FOLDER --what continuous --json continuous.json

static: `generate` with a static cache, which compiles the decoding step into graphs; for each batch the
prompts of one workload. continuous: `generate_batch`, which takes requests in and out of its batch as we
do. Both greedy, to the last token that was asked for, with the requests of pagewire_bench.workloads; the
first run, in which everything is compiled, does not count. Attention is torch's SDPA in both: flash kernels
for it would have to be fetched. Weights are drawn on the device.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers import __version__ as version

from pagewire_bench.workloads import ALL, Request

NAMES = {"static": ("single", "batch"), "continuous": ("batch", "crowd")}
"""Workloads whose requests are all of one length, which a static batch needs."""


def make_model(folder: Path, device: str) -> PreTrainedModel:
    """From config.json, its weights drawn where they are used."""
    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype, attn_implementation="sdpa")
    made: PreTrainedModel = model.eval()
    return made


def settings(tokens: int, **more: Any) -> GenerationConfig:
    """Greedy, so many tokens."""
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
        eos_token_id=None,
        **more,
    )


def run_static(model: PreTrainedModel, requests: list[Request], compile_it: bool) -> int:
    """One batch of equal lengths. Returns the number of tokens that came."""
    ids = torch.tensor([request.prompt for request in requests], device=model.device)
    config = settings(requests[0].output, cache_implementation="static", disable_compile=not compile_it)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return int(out.shape[0] * (out.shape[1] - ids.shape[1]))


def run_continuous(model: PreTrainedModel, requests: list[Request]) -> int:
    """All at once."""
    prompts = [request.prompt for request in requests]
    results = model.generate_batch(prompts, settings(requests[0].output), progress_bar=False)
    return sum(len(result.generated_tokens) for result in results.values())


def measure(run: Callable[[list[Request]], int], name: str, vocab_size: int, context: int) -> dict[str, Any]:
    """Two runs, of which the second counts. Raises RuntimeError unless all tokens came."""
    workload, seconds, tokens = ALL[name], 0.0, 0
    for repetition in range(2):
        requests = workload.requests(repetition, vocab_size, context)
        began = time.perf_counter()
        tokens = run(requests)
        seconds = time.perf_counter() - began
        wanted = sum(request.output for request in requests)
        if tokens != wanted:
            raise RuntimeError(f"{name}: asked transformers for {wanted} tokens, got {tokens}")
    return {"tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with config.json")
    parser.add_argument("--what", choices=sorted(NAMES), required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workloads", default="", help="of one length each; default: those that fit")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    model = make_model(options.folder, options.device)
    vocab_size, context = model.config.vocab_size, model.config.max_position_embeddings
    static, compile_it = options.what == "static", options.device != "cpu"

    def run(requests: list[Request]) -> int:
        return run_static(model, requests, compile_it) if static else run_continuous(model, requests)

    figures: dict[str, Any] = {"transformers": version, "workloads": {}}
    for name in options.workloads.split(",") if options.workloads else NAMES[options.what]:
        figures["workloads"][name] = measure(run, name, vocab_size, context)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
