"""Whole models for row_equality: prompts and decoding through the worker's executor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.gpu.first_hour.bit_classes import Probe
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.works import Setting
from benchmarks.steps.plans import new_row, plan, removal
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.v1.generation_pb2 import LogprobOptions
from worker.loop import StepRunner

BLOCK_SIZE = 16
BUDGET = 8192
"""Tokens of a step."""


@dataclass(frozen=True)
class Lengths:
    """In tokens."""

    prompt: int = 90
    output: int = 6

    @property
    def blocks(self) -> int:
        """That a row has."""
        return -(-(self.prompt + self.output) // BLOCK_SIZE)


SHORT = Lengths(10, 3)
"""For the interpreter, which takes a second for a step."""


MODELS = ("0.5B", "experts", "latents")
TINY_MODELS = ("tiny", "tiny experts", "tiny latents")


def model_probes(setting: Setting, sizes: Sequence[int]) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Among others, whose prompts come in steps of their own before the probe's; and in pieces. Of the models
    of benchmarks.gpu.models, one in memory at a time."""
    tiny = setting.device.type == "cpu"
    lengths = SHORT if tiny else Lengths()

    @lru_cache(maxsize=1)
    def runner(shape: str) -> StepRunner:
        return load_runner(shape, setting.device, max(sizes), lengths)

    for shape in TINY_MODELS if tiny else MODELS:

        def rows(probe: int, shape: str = shape) -> Rows:
            return Rows(runner(shape), SHAPES[shape].vocab, probe, lengths)

        yield from _probes_of(shape, rows, lengths, sizes)


def _probes_of(
    shape: str, rows: "Maker", lengths: Lengths, sizes: Sequence[int]
) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Those of one model."""
    few = [*(size for size in sizes if size < lengths.prompt), lengths.prompt]
    batch = f"{shape} model, decoding in a batch"
    yield batch, partial(Probe, batch, partial(_in_a_batch, rows), sizes)
    cut = f"{shape} model, prompt in pieces"
    yield cut, partial(Probe, cut, partial(_in_pieces, rows), few, places=False)
    again = f"{shape} model, resumed behind so many tokens"
    yield again, partial(Probe, again, partial(_resumed, rows), range(lengths.output), places=False)


def load_runner(shape: str, device: torch.device, rows: int, lengths: Lengths) -> StepRunner:
    """Returns a runner with random weights. On a CPU, in Triton's interpreter, without warm-up."""
    from worker.load import check, load
    from worker.platforms.cuda import CudaPlatform

    blocks = rows * lengths.blocks
    with TemporaryDirectory() as folder:
        SHAPES[shape].write(Path(folder))
        initialize = worker_pb2.Initialize(
            model_path=folder,
            device="cuda",
            load_format="dummy",
            max_num_seqs=rows,
            max_num_batched_tokens=BUDGET,
            max_model_len=lengths.prompt + lengths.output + 1,
            block_size=BLOCK_SIZE,
            num_blocks=blocks,
            gpu_memory_utilization=0.9,
        )
        if device.type == "cuda":
            return load(initialize, CudaPlatform(WorkerConfig()))[0]
        platform = CudaPlatform(WorkerConfig())
        return platform.load_model(check(initialize, platform)).assemble(blocks, 0)


class Rows:
    """Plans for rows with prompts of their own; the results of one of them."""

    def __init__(self, runner: StepRunner, vocabulary: int, probe: int, lengths: Lengths) -> None:
        """probe: the row whose results are kept."""
        self._runner, self._vocabulary, self._probe = runner, vocabulary, probe
        self.lengths = lengths
        self._begun: set[int] = set()
        self.result = b""  # tokens and log-probabilities, as they come
        self.tokens: list[int] = []

    def compute(self, rows: Sequence[int], start: int, count: int, known: Sequence[int] = ()) -> None:
        """One step: these rows compute the tokens at start to start + count - 1; behind its prompt each
        samples. known: output that the probe begins with."""
        samples = rows if start + count >= self.lengths.prompt + len(known) else []
        new = [self._new_row(row, known) for row in rows if row not in self._begun]
        self._begun.update(rows)
        self._runner.launch(plan(rows, start, count, new, samples))
        result = self._runner.finish()
        if self._probe in samples:
            at = 4 * list(samples).index(self._probe)
            token = result.token_ids[at : at + 4]
            self.tokens.append(int.from_bytes(token, "little"))
            self.result += token + result.logprobs.logprobs

    def remove(self) -> None:
        """All of them."""
        self._runner.launch(removal(sorted(self._begun)))
        self._runner.finish()

    def _new_row(self, row: int, known: Sequence[int]) -> worker_pb2.NewRow:
        """The probe has the same prompt whatever its row, and others have those of their rows."""
        seed = 10**6 if row == self._probe else row
        prompt = np.random.default_rng(seed).integers(16, self._vocabulary, self.lengths.prompt).tolist()
        blocks = range(row * self.lengths.blocks, (row + 1) * self.lengths.blocks)
        new = new_row(row, [*prompt, *known], self.lengths.prompt, blocks)
        if row == self._probe:
            new.logprobs.CopyFrom(LogprobOptions())
        return new


Maker = Callable[[int], Rows]


def _decode(rows: Rows, members: Sequence[int], begin: int = 0) -> None:
    """Decodes the rest of the output, behind its first `begin` tokens and the one that follows the prompt."""
    for step in range(begin, rows.lengths.output - 1):
        rows.compute(members, rows.lengths.prompt + step, 1)


def _bits(result: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(result), dtype=torch.uint8)


def _in_a_batch(make: Maker, size: int, place: int) -> torch.Tensor:
    """Prompts come one step after the other, the probe's alone: what differs is the decoding."""
    rows = make(place)
    prompt = rows.lengths.prompt
    rows.compute([place], 0, prompt)
    others = [row for row in range(size) if row != place]
    most = BUDGET // prompt
    for first in range(0, len(others), most):
        rows.compute(others[first : first + most], 0, prompt)
    _decode(rows, range(size))
    rows.remove()
    return _bits(rows.result)


def _in_pieces(make: Maker, size: int, place: int) -> torch.Tensor:
    """The prompt in steps of so many tokens."""
    rows = make(0)
    prompt = rows.lengths.prompt
    for start in range(0, prompt, size):
        rows.compute([0], start, min(size, prompt - start))
    _decode(rows, [0])
    rows.remove()
    return _bits(rows.result)


def _resumed(make: Maker, size: int, place: int) -> torch.Tensor:
    """So many tokens of the output come with the prompt, as after a kill. What is compared is what all sizes
    have: the last token and its log-probability."""
    whole = make(0)
    whole.compute([0], 0, whole.lengths.prompt)
    _decode(whole, [0])
    whole.remove()
    rows = make(0)
    rows.compute([0], 0, rows.lengths.prompt + size, whole.tokens[:size])
    _decode(rows, [0], size)
    rows.remove()
    return _bits(rows.result[-8:])
