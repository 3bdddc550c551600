"""What the service makes of a GPU: its steps, the whole of it, and transformers on the same machine. Needs
CUDA.

    python -m benchmarks.gpu.serve                # 8B, 0.5B, 1.5B; a table last, in less than ten minutes
    python -m benchmarks.gpu.serve --models 0.5B --json gpu_serve.json
    python -m benchmarks.gpu.serve --models experts,latents --parts steps
    python -m benchmarks.gpu.serve --tiny         # on a CPU, of a model of no use: to try this out

Nothing is fetched: models are configurations (benchmarks/gpu/models.py), weights are drawn on the device.
Each part is a process of its own, so that the device's memory is free again behind it and what fails costs
no other part's figures:

    steps         benchmarks/gpu/steps.py: decode at batch 1, 32, 256 and contexts 1k, 4k; prompts alone
    service       benchmarks/service/serve.py: its workloads, and 256 streams at once, through gRPC
    continuous    benchmarks/gpu/transformers.py: transformers' continuous batching
    static        the same: its compiled static cache

In the table a decoding step stands beside the time in which the bytes that it must read come from memory at
the bandwidth of a large copy, a prompt beside the rate of a large matrix product, both measured before; the
service beside the best of transformers. Between steps there was work, and no step was under way. The last
column is a ratio; of times it is ours to theirs, 1.15 a sixth longer; of rates ours to theirs, 3 three
times as fast. Parts that the time did not reach, or that failed, are named with the reason; the JSON has
everything.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.models import SHAPES

ROOT = Path(__file__).parents[2]
MODELS = "8B,0.5B,1.5B"
"""In order of what matters if the time is short."""
LEAST_S = 30.0
"""What a part needs at least: with less left it is not begun."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    device: str
    seconds: float  # for everything
    workloads: str = "single,batch,ragged,prefix,long,crowd"
    repeats: int = 1
    serve_flags: tuple[str, ...] = ("--max-num-seqs=256",)
    steps: tuple[str, ...] = ()
    transformers: tuple[str, ...] = ()

    def command(self, part: str, shape: str, folder: Path, output: Path) -> list[str]:
        """Of one part."""
        where = [f"--device={self.device}", f"--json={output}"]
        if part == "steps":
            module = [sys.executable, "-m", "benchmarks.gpu.steps", str(folder), f"--shape={shape}"]
            return [*module, *where, *self.steps]
        if part == "service":
            script = [
                sys.executable,
                "-m",
                "benchmarks.service.serve",
                f"--start={folder}",
                f"--json={output}",
            ]
            flags = [f"--device={self.device}", "--load-format=dummy", *self.serve_flags]
            what = [f"--workloads={self.workloads}", f"--repeats={self.repeats}", "--breakdown"]
            return [*script, *what, "--", *flags]
        module = [sys.executable, "-m", "benchmarks.gpu.transformers", str(folder), f"--what={part}"]
        return [*module, *where, *self.transformers]


TINY = Plan(
    "cpu",
    180,
    workloads="single",
    serve_flags=("--max-model-len=600", "--num-blocks=80"),
    steps=("--prompts=24,40", "--batches=1,3", "--contexts=16,40", "--steps=6"),
    transformers=("--workloads=single",),
)


def order(models: Sequence[str], parts: Sequence[str]) -> list[tuple[str, str]]:
    """(model, part): the first model with everything, then the others' parts one after the other."""
    first = [(models[0], part) for part in parts]
    return first + [(model, part) for part in parts for model in models[1:]]


def run_part(command: list[str], output: Path, limit: float) -> tuple[Figures, str | None]:
    """The figures that it wrote, and what went wrong, in a line."""
    why = None
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        if run.returncode:
            lines = (run.stderr or run.stdout).strip().splitlines() or ["no word"]
            why = f"exit code {run.returncode}: {lines[-1][:200]}"
    except subprocess.TimeoutExpired:
        why = f"not done in {limit:.0f} s"
    try:
        return json.loads(output.read_text()), why
    except (OSError, ValueError):
        return {}, why or "it wrote no figures"


def measure(
    plan: Plan,
    models: Sequence[str],
    parts: Sequence[str],
    say: Callable[[str], None],
    keep: Callable[[dict[str, dict[str, Figures]], list[str]], object] = lambda figures, missing: None,
) -> tuple[dict[str, dict[str, Figures]], list[str]]:
    """Figures by model and part, and what is missing. keep: called with both after each part."""
    began = time.monotonic()
    figures: dict[str, dict[str, Figures]] = {model: {} for model in models}
    missing = []
    with TemporaryDirectory() as name:
        for model in models:
            SHAPES[model].write(Path(name) / model)
        for model, part in order(models, parts):
            left = plan.seconds - (time.monotonic() - began)
            if left < LEAST_S:
                missing.append(f"{model} {part}: the time was over")
                continue
            output = Path(name) / f"{model} {part}.json"
            say(f"{model} {part} ...")
            command = plan.command(part, model, Path(name) / model, output)
            figures[model][part], why = run_part(command, output, left)
            if why is not None:
                missing.append(f"{model} {part}: {why}")
            keep(figures, missing)
    return figures, missing


def step_lines(model: str, steps: Figures) -> Iterator[str]:
    """Steps beside what the device could do."""
    for row in steps.get("decode", ()):
        what = f"decode, {row['batch']} x {row['context']}"
        if "missing" in row:
            yield line(model, what, "-", row["missing"], None)
            continue
        least = 1e3 * row["bytes"] / steps["bandwidth"]
        ours = f"{row['ms']:.2f} ms, {row['tokens_per_s']:.0f} tokens/s"
        yield line(model, what, ours, f"{least:.2f} ms: its bytes", row["ms"] / least)
    for row in steps.get("prefill", ()):
        rate, most = row["flops_per_s"] / 1e12, steps["flops_per_s"] / 1e12
        what, ours = f"prompt of {row['tokens']}", f"{rate:.1f} TFLOP/s, {row['ms']:.1f} ms"
        yield line(model, what, ours, f"{most:.1f} TFLOP/s: a product", rate / most)


def service_lines(model: str, parts: dict[str, Figures]) -> Iterator[str]:
    """Workloads beside the best of transformers."""
    for name, summary in parts.get("service", {}).get("workloads", {}).items():
        ours = summary["tokens_per_s"]["median"]
        idle = "".join(
            f", {part['parts']['between steps']:.1f}% between steps"
            for part in parts["service"].get("breakdowns", {}).get(name, ())[:1]
        )
        rates = {
            part: parts[part]["workloads"][name]["tokens_per_s"]
            for part in ("static", "continuous")
            if name in parts.get(part, {}).get("workloads", {})
        }
        best = max(rates, key=lambda part: rates[part], default=None)
        theirs = "" if best is None else f"{rates[best]:.0f} tokens/s: transformers, {best}"
        ratio = None if best is None else ours / rates[best]
        yield line(model, f"service, {name}", f"{ours:.0f} tokens/s{idle}", theirs, ratio)


def line(model: str, what: str, ours: str, theirs: str, ratio: float | None) -> str:
    """Of the table, in Markdown."""
    return f"| {model} | {what} | {ours} | {theirs} | {'' if ratio is None else f'{ratio:.2f}'} |"


def table(figures: dict[str, dict[str, Figures]]) -> list[str]:
    """All of it."""
    lines = ["| model | what | ours | beside | ratio |", "| --- | --- | --- | --- | ---: |"]
    for model, parts in figures.items():
        lines += [*step_lines(model, parts.get("steps", {})), *service_lines(model, parts)]
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(SHAPES)
    parser.add_argument("--models", default="", help=f"of {names}; default: {MODELS}, with --tiny tiny")
    parser.add_argument("--parts", default="steps,service,continuous,static", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=540, help="for everything; default: %(default)s")
    parser.add_argument("--json", type=Path, default=Path("gpu_serve.json"), help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, to try the benchmark itself")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if not options.tiny and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device: there is nothing to measure here, but for --tiny")
    plan = TINY if options.tiny else Plan("cuda", options.seconds)
    models = (options.models or ("tiny" if options.tiny else MODELS)).split(",")
    unknown = set(models) - set(SHAPES)
    if unknown:
        sys.exit(f"unknown models: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")

    def keep(figures: dict[str, dict[str, Figures]], missing: list[str]) -> None:
        """What is there stays, if the command is cut off."""
        options.json.write_text(json.dumps({"figures": figures, "missing": missing}, indent=1) + "\n")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    figures, missing = measure(plan, models, options.parts.split(","), say, keep)
    keep(figures, missing)
    steps = next((parts["steps"] for parts in figures.values() if parts.get("steps")), {})
    if steps:
        copy, product = steps["bandwidth"] / 1e12, steps["flops_per_s"] / 1e12
        print(f"{steps['device']}, torch {steps['torch']}: {copy:.3f} TB/s, {product:.2f} TFLOP/s\n")
    print(*table(figures), sep="\n")
    if missing:
        print("\nmissing:", *missing, sep="\n  ")


if __name__ == "__main__":
    main()
