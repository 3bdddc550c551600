"""The sampler on tensors that have no memory: Triton reads what it would compile, and launches nothing."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

STEPS = '''
import random

import torch
from torch.overrides import TorchFunctionMode

from pagewire.internal.v1 import worker_pb2
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.worker.cuda.sampling.test_sampler import random_case
from tests.worker.cuda.serve_compiling import offline
from worker.cuda.sampling import logprobs as scores
from worker.cuda.sampling.sampler import CudaSampler
from worker.cuda.startup.warm_up import example_rows
from worker.sampling.logprobs.messages import LogprobRequests
from worker.sampling.logprobs.scores import SampledScores

V, ROWS, META = 32000, 40, torch.device("meta")
scores._to_host = lambda tensor: tensor  # there is nothing to copy


class NoWaits(TorchFunctionMode):
    """torch.tensor(values, device=...) copies from ordinary memory, which waits; all that reads a device's
    values fails on tensors without memory by itself."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.tensor, torch.as_tensor), "a copy that waits"
        return function(*args, **(kwargs or {}))


class Rows:
    """Of a sampler, and what they want."""

    def __init__(self):
        self.sampler, self.requests, self.used = CudaSampler(ROWS, V, META), LogprobRequests(V), []

    def add(self, row, new, prompt, output):
        self.sampler.add_row(row, new, prompt, output)
        self.requests.add_row(row, new, prompt, output)
        self.used.append(row)

    def step(self, rows):
        watch = SampledScores(self.requests.sampled, scores.score)
        tokens = self.sampler.sample(torch.empty(len(rows), V, device=META), rows, watch)
        assert tokens.shape == (len(rows),)

    def offer(self, rows, most):
        self.sampler.beam_candidates(torch.empty(len(rows), V, device=META), rows, most)
        self.sampler.append(rows, torch.empty(len(rows), dtype=torch.int64, device=META))


def warm_up(rows):
    for row, new in enumerate(example_rows(V)):
        rows.add(row, new, [0], [0])
        if new.num_beam_candidates:
            rows.offer([row], new.num_beam_candidates)
        else:
            rows.step([row])


def serve(rows, rng):
    for row in range(rows.used[-1] + 1, ROWS):
        case = random_case(rng, V)
        new = case.new_row(row)
        if rng.random() < 0.5:
            new.logprobs.CopyFrom(LogprobOptions(top_n=rng.randint(1, 100)))
        rows.add(row, new, case.prompt * rng.randint(1, 40), case.output)
    rows.sampler.fork_row(3, ROWS - 1, 1)
    for count in (1, 2, 3, 15, 16, 17, 33):
        rows.step(rng.sample(rows.used, count))
        rows.offer(rng.sample(rows.used, count), count)


with offline() as names, NoWaits():
    rows = Rows()
    warm_up(rows)
    first = len(names)
    serve(rows, random.Random(0))
print(first, *sorted(names[first:]), sep="\\n")
'''


def test_it_never_waits_and_compiles_nothing_after_the_examples() -> None:
    """Rows that ask for anything, in steps of any size; tables that grow; beams; log-probabilities."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", STEPS]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, *late = run.stdout.split("\n")[:-1]
    assert int(first) > 10 and late == []
