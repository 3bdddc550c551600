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
    command: tuple[str, ...]  # of Python; {output} and {seconds} are filled in
    least: float = 60.0  # seconds; with less left it is not begun
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, output: Path, seconds: float) -> list[str]:
        """Returns the command line. output: where its figures go, as JSON. seconds: that it is given; of
        which it is told nine tenths, so that it ends by itself."""
        filled = [word.format(output=output, seconds=round(0.9 * seconds)) for word in self.command]
        return [sys.executable, *filled]


def _module(name: str, *words: str, output: bool = True) -> tuple[str, ...]:
    return ("-m", name, *words, *(("--json={output}",) if output else ()))


FOLDERS = ("tests/kernels/triton", "tests/worker/cuda")
"""Those with tests that need a GPU."""


def cuda_parts() -> list[Part]:
    """Together 40 minutes, with a minute between them: wrong kernels first, then wrong rows, then speed."""
    here = "benchmarks.gpu.first_hour"
    return [
        Part("tests", "tests that need a GPU", 480, _module(f"{here}.gpu_tests", "--marker=gpu", *FOLDERS)),
        Part("equality", "row equality", 390, _module(f"{here}.row_equality", "--seconds={seconds}")),
        Part("tiles", "kernels by tile sizes", 180, _module(f"{here}.tile_variants")),
        Part("kernels", "kernels", 390, _module("benchmarks.gpu.kernels", "--seconds={seconds}")),
        Part("service", "service", 420, _module("benchmarks.gpu.serve", "--seconds={seconds}")),
        Part("families", "steps with experts and with latents", 90, _families("--seconds={seconds}")),
        Part("kills", "kills", 390, _kills("cuda", 1000, 6)),
    ]


def cpu_parts() -> list[Part]:
    """The same programs on small inputs."""
    here = "benchmarks.gpu.first_hour"
    folder = "tests/kernels/triton/elementwise"
    tiny = ("--device=cpu",)
    return [
        Part("tests", "tests", 240, _module(f"{here}.gpu_tests", folder), 5, WITHOUT),
        Part(
            "equality",
            "row equality",
            240,
            _module(f"{here}.row_equality", *tiny, "--seconds={seconds}"),
            5,
            INTERPRETED,
        ),
        Part("tiles", "kernels by tile sizes", 240, _module(f"{here}.tile_variants", *tiny), 5, INTERPRETED),
        Part(
            "kernels",
            "kernels",
            240,
            _module("benchmarks.gpu.kernels", "--tiny", "--only=add_rms_norm,experts,latents"),
            5,
            INTERPRETED,
        ),
        Part(
            "service", "service", 240, _module("benchmarks.gpu.serve", "--tiny", "--parts=steps"), 5, WITHOUT
        ),
        Part("families", "steps with experts and with latents", 240, _families("--tiny"), 5, WITHOUT),
        Part("kills", "kills", 180, _kills("cpu", 2, 2), 5, WITHOUT),
    ]


def _families(option: str) -> tuple[str, ...]:
    """option: --tiny for the small ones, or the time that they may take."""
    models = "tiny experts,tiny latents" if option == "--tiny" else "experts,latents"
    return _module("benchmarks.gpu.serve", option, f"--models={models}", "--parts=steps")


def _kills(device: str, kills: int, per_round: int) -> tuple[str, ...]:
    """One kill in three is of the worker, of the core, of a frontend."""
    counts = (f"--device={device}", f"--kills={kills}", f"--round={per_round}", "--seconds={seconds}")
    victims = ("--victims", "worker=1", "engine=1", "frontend=1")
    return ("-m", "tests.chaos.run", *counts, "--json={output}", *victims)
