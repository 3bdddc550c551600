"""Measures what int8 and int4 lose: perplexity of the demo model, and logits of models of real shapes.

    python -m benchmarks.steps.quantization                                    # the demo model
    python -m benchmarks.steps.quantization /data/peers/models/M1 /data/peers/models/M2

The demo model reads text of the kind that it was trained on (documents drawn with another seed). Random
weights know no text: there the logits of random tokens are compared, in units of their own spread.

The line q4_0 is for comparison: weights rounded as llama.cpp does it, by the gguf package, with the head in
q8_0; activations stay in 16 bits.
"""

import argparse
import math
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from benchmarks.steps.worker_step import GREEDY
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.cpu.backend import CpuBackend
from worker.executor.executor import StepExecutor
from worker.load import load
from worker.platforms.cpu import CpuPlatform

FORMS = "int8", "int4"
BLOCK_SIZE, LENGTH, DOCUMENTS, SEED = 16, 512, 400, 2026


def make_runner(
    folder: Path, quantization: str, dtype: str = "bfloat16", kv_cache_dtype: str = ""
) -> StepExecutor[CpuBackend]:
    """folder: or a GGUF file. quantization, dtype, kv_cache_dtype: as in Initialize."""
    initialize = worker_pb2.Initialize(
        model_path=str(folder),
        device="cpu",
        dtype=dtype,
        load_format="auto",
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_num_seqs=1,
        max_num_batched_tokens=LENGTH,
        block_size=BLOCK_SIZE,
        num_blocks=LENGTH // BLOCK_SIZE,
    )
    return load(initialize, CpuPlatform(WorkerConfig(threads=0)))[0]


def logits_of(runner: StepExecutor[CpuBackend], token_ids: list[int]) -> torch.Tensor:
    """Of every position: [T, V] float32."""
    hidden: list[torch.Tensor] = []
    model = runner.backend.model
    forward = model.forward

    def keep(*inputs: object) -> torch.Tensor:
        hidden.append(forward(*inputs))  # type: ignore[arg-type]
        return hidden[-1]

    model.forward = keep  # type: ignore[method-assign, assignment]
    row = worker_pb2.NewRow(
        row=0,
        prompt_len=len(token_ids),
        token_ids=pack_u32(token_ids),
        blocks=pack_u32(range(LENGTH // BLOCK_SIZE)),
        sampling=GREEDY,
    )
    columns = {
        "rows": [0],
        "starts": [0],
        "counts": [len(token_ids)],
        "sample_rows": [0],
        "sample_sources": [0],
    }
    runner.execute(
        worker_pb2.StepPlan(new_rows=[row], **{name: pack_u32(column) for name, column in columns.items()})
    )
    runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32([0])))
    model.forward = forward  # type: ignore[method-assign]
    with torch.inference_mode():
        return model.logits(hidden[0]).clone()


def perplexity(runner: StepExecutor[CpuBackend], texts: list[list[int]]) -> float:
    """e to the mean negative log-likelihood of every token but the first of each text."""
    losses = []
    for token_ids in texts:
        logprobs = logits_of(runner, token_ids).double().log_softmax(-1)[:-1]
        losses.append(-logprobs.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0])
    return math.exp(float(torch.cat(losses).mean()))


def divergence(
    plain: StepExecutor[CpuBackend], lossy: StepExecutor[CpuBackend], texts: list[list[int]]
) -> float:
    """The mean Kullback-Leibler divergence of the distributions after all tokens, in nats."""
    sums, count = 0.0, 0
    for token_ids in texts:
        exact, other = (logits_of(each, token_ids).double().log_softmax(-1) for each in (plain, lossy))
        sums += float((exact.exp() * (exact - other)).sum())
        count += len(token_ids)
    return sums / count


def demo() -> None:
    """Prints the perplexities, and the divergences from bfloat16."""
    from demo_model.text import EOS, document

    folder = checkpoint_folder("demo")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(SEED)
    drawn = ["".join(segment.text for segment in document(rng)) for _ in range(DOCUMENTS)]
    encoded = [tokenizer.encode(text.removesuffix(EOS), add_special_tokens=False).ids for text in drawn]
    texts = [ids[: LENGTH - 1] for ids in encoded if len(ids) > 1]
    exact = make_runner(folder, "")
    plain = perplexity(exact, texts)
    print(f"demo model, {sum(map(len, texts))} tokens: perplexity {plain:.3f} in bfloat16")

    def tell(name: str, runner: StepExecutor[CpuBackend]) -> None:
        value, nats = perplexity(runner, texts), divergence(exact, runner, texts)
        print(
            f"  {name:<9} {value:8.3f}  {100 * (value / plain - 1):+.2f} %, divergence {nats:.4f}", flush=True
        )

    tell("fp8 cache", make_runner(folder, "", kv_cache_dtype="fp8_e4m3"))
    with tempfile.TemporaryDirectory() as copy:
        for name, runner in lossy_runners(folder, Path(copy)):
            tell(name, runner)


def lossy_runners(folder: Path, copy: Path) -> Iterator[tuple[str, StepExecutor[CpuBackend]]]:
    """Yields the name of each form with its model, that of q4_0 in a copy of the checkpoint."""
    for form in FORMS:
        yield form, make_runner(folder, form)
    yield "q4_0", make_runner(q4_0(folder, copy), "")


def q4_0(folder: Path, to: Path) -> Path:
    """Makes a copy of a checkpoint with matrices rounded to q4_0, embedding and head to q8_0."""
    import gguf

    shutil.copytree(folder, to, dirs_exist_ok=True)
    for file in to.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.ndim == 2:
                kind = (
                    gguf.GGMLQuantizationType.Q4_0 if ".layers." in name else gguf.GGMLQuantizationType.Q8_0
                )
                packed = gguf.quantize(tensor.float().numpy(), kind)
                tensors[name] = torch.from_numpy(gguf.dequantize(packed, kind)).to(tensor.dtype)
        save_file(tensors, file)
    return to


def compare(folder: Path) -> None:
    """Prints the error of the logits."""
    generator = torch.Generator().manual_seed(SEED)
    plain = make_runner(folder, "")
    token_ids = torch.randint(0, plain.rows.vocab_size, (LENGTH - 1,), generator=generator).tolist()
    exact = logits_of(plain, token_ids)
    spread = exact.std(-1, keepdim=True)
    print(f"{folder.name}, {len(token_ids)} tokens: by how much of their spread logits differ")
    with tempfile.TemporaryDirectory() as copy:
        for name, runner in lossy_runners(folder, Path(copy)):
            lossy = logits_of(runner, token_ids)
            errors = (lossy - exact) / spread
            same = (exact.argmax(-1) == lossy.argmax(-1)).double().mean()
            mean, most = errors.square().mean().sqrt(), errors.abs().max()
            line = f"  {name:<9} {mean:.4f} (rms), {most:.3f} at most;"
            print(f"{line} the largest logit is the same at {100 * same:.1f} % of the positions", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, help="folders of checkpoints; none: the demo model")
    options = parser.parse_args()
    for folder in options.models:
        compare(folder)
    if not options.models:
        demo()


if __name__ == "__main__":
    main()
