"""The parts of the first hour, in order of value, and the same ones small for a machine without a card."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Kernels on a CPU."""
WITHOUT = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Part:
    """A process that writes figures while it runs."""

    name: str
    about: str
    seconds: float  # that it may take
    command: tuple[str, ...]  # of Python; {output}, {seconds} and {model} are filled in
    least: float = 60.0  # seconds; with less left it is not begun
    environment: Mapping[str, str] = field(default_factory=dict)
    shape: str = ""  # of benchmarks.gpu.models: the model that {model} is the folder of

    def words(self, output: Path, seconds: float) -> list[str]:
        """Returns the command line. output: where its figures go, as JSON. seconds: that it is given; of
        which it is told nine tenths, so that it ends by itself."""
        told, model = round(0.9 * seconds), self.model(output.parent)
        return [
            sys.executable,
            *(word.format(output=output, seconds=told, model=model) for word in self.command),
        ]

    def model(self, folder: Path) -> Path:
        """Returns where the part's model is. folder: of the report."""
        return folder / "models" / self.shape


def _module(name: str, *words: str, output: bool = True) -> tuple[str, ...]:
    return ("-m", name, *words, *(("--json={output}",) if output else ()))


FOLDERS = ("tests/kernels/triton", "tests/worker/cuda")
"""Those with tests that need a GPU."""
TWO = "tests/worker/cuda/test_on_two_gpus.py"
"""What two devices have: it is left out where there is one."""


TINY_STEPS = (
    "--models=tiny,tiny experts,tiny latents",
    "--prompts=24,40",
    "--batches=1,3",
    "--contexts=16,40",
    "--steps=6",
)


def cuda_parts() -> list[Part]:
    """Together 40 minutes, with a minute between them: wrong kernels first, then wrong rows, then speed."""
    here = "benchmarks.gpu.first_hour"
    return [
        Part("tests", "tests that need a GPU", 450, _module(f"{here}.gpu_tests", "--marker=gpu", *FOLDERS)),
        Part("equality", "row equality", 390, _module(f"{here}.row_equality", "--seconds={seconds}")),
        Part("ranks", "two devices beside one", 90, _module(f"{here}.gpu_tests", "--marker=gpu", TWO)),
        Part("kernels", "kernels", 390, _module("benchmarks.gpu.kernels", "--seconds={seconds}")),
        Part("steps", "steps", 390, _module("benchmarks.gpu.steps", "--seconds={seconds}")),
        _service("8B", 300, "--device=cuda", "--max-num-seqs=256"),
        Part("kills", "kills", 390, _kills("cuda", 1000, 6)),
    ]


def cpu_parts() -> list[Part]:
    """The same programs on small inputs."""
    here = "benchmarks.gpu.first_hour"
    folder = "tests/kernels/triton/elementwise"
    tiny = ("--device=cpu",)
    equality = _module(f"{here}.row_equality", *tiny, "--seconds={seconds}")
    kernels = _module("benchmarks.gpu.kernels", "--tiny", "--only=add_rms_norm,experts,latents")
    return [
        Part("tests", "tests", 240, _module(f"{here}.gpu_tests", folder), 5, WITHOUT),
        Part("equality", "row equality", 240, equality, 5, INTERPRETED),
        Part("ranks", "ranks", 60, _module(f"{here}.gpu_tests", TWO), 5, WITHOUT),
        Part("kernels", "kernels", 240, kernels, 5, INTERPRETED),
        Part("steps", "steps", 240, _module("benchmarks.gpu.steps", *tiny, *TINY_STEPS), 5, WITHOUT),
        _service("tiny", 240, "--device=cpu", "--max-model-len=600", "--num-blocks=80"),
        Part("kills", "kills", 180, _kills("cpu", 2, 2), 5, WITHOUT),
    ]


def _service(shape: str, seconds: float, *flags: str) -> Part:
    """The whole service with random weights. flags: of `pagewire serve`."""
    tiny = shape == "tiny"
    workloads = "single" if tiny else "single,batch,ragged,prefix,long,crowd"
    words = _module(
        "benchmarks.service.serve",
        "--start={model}",
        f"--workloads={workloads}",
        "--repeats=1",
        "--breakdown",
    )
    command = (*words, "--", "--load-format=dummy", *flags)
    around = WITHOUT if tiny else {}
    return Part("service", "service", seconds, command, 5 if tiny else 60, around, shape)


def _kills(device: str, kills: int, per_round: int) -> tuple[str, ...]:
    """One kill in three is of the worker, of the core, of a frontend."""
    counts = (f"--device={device}", f"--kills={kills}", f"--round={per_round}", "--seconds={seconds}")
    victims = ("--victims", "worker=1", "engine=1", "frontend=1")
    return ("-m", "tests.chaos.run", *counts, "--json={output}", *victims)
