"""The sampler of the CUDA worker against that of the CPU, which is its definition: the same tokens.

Tokens must be equal: see tests/kernels/gpu/test_sample.py.
"""

import random
from typing import Any

import pytest
import torch

from tests.worker.sampling_reference import Case
from worker.cuda.sampler import Sampler
from worker.sampler import Sampler as CpuSampler

ROWS = 7
CPU = torch.device("cpu")
Rng = random.Random


def random_case(rng: Rng, vocab_size: int) -> Case:
    """Any combination of parameters, each absent half of the time; filters, which take their time in the
    interpreter, more often."""

    def tokens(most: int) -> list[int]:
        return rng.sample(range(vocab_size), rng.randint(1, min(most, vocab_size)))

    values: dict[str, Any] = {
        "temperature": rng.choice([0.0, 1e-45, 0.3, 0.8, 1.0, 3.0]),
        "top_k": rng.choice([0, 1, 2, 7, vocab_size - 1, vocab_size, 10**9]),
        "top_p": rng.choice([1e-6, 0.3, 0.9, 0.999, 1.0]),
        "min_p": rng.choice([0.0, 0.05, 0.5, 1.0]),
        "typical_p": rng.choice([1e-6, 0.3, 0.9, 1.0]),
        "repetition_penalty": rng.choice([0.5, 1.0, 1.2]),
        "frequency_penalty": rng.choice([-1.0, 0.0, 0.7]),
        "presence_penalty": rng.choice([-1.0, 0.0, 0.7]),
        "logit_bias": {token: rng.choice([-100.0, 1.5, 5.0]) for token in tokens(4)},
        "allowed_token_ids": tokens(9),
        "bad_token_ids": tokens(9),
    }
    slow = {"top_p": 0.25, "top_k": 0.25, "typical_p": 0.12}
    sampling = {name: value for name, value in values.items() if rng.random() < slow.get(name, 0.5)}
    few = range(4)  # So that bad words come true.
    return Case(
        sampling={**sampling, "seed": rng.getrandbits(64)},
        prompt=rng.choices(range(vocab_size), k=rng.randint(1, 9)),
        output=rng.choices(few, k=rng.randint(0, 9)),
        bad_words=[rng.choices(few, k=rng.randint(1, 3)) for _ in range(rng.choice([0, 0, 1, 5]))],
        stop_token_ids=tokens(3) if rng.random() < 0.5 else [],
        min_tokens=rng.choice([0, 0, 5, 12]),
        sequence_index=rng.randint(0, 3),
    )


class Pair:
    """Both samplers, told the same. cases: what each row has and has said."""

    def __init__(self, vocab_size: int, device: torch.device, seed: int) -> None:
        self.rng, self.vocab_size, self.device = Rng(seed), vocab_size, device
        self.cpu, self.gpu = CpuSampler(ROWS, vocab_size, CPU), Sampler(ROWS, vocab_size, device)
        self.generator = torch.Generator().manual_seed(seed)
        self.cases: dict[int, Case] = {}
        self.used = set[str]()

    def add(self, row: int, case: Case) -> None:
        for sampler in (self.cpu, self.gpu):
            sampler.add_row(row, case.new_row(row), case.prompt, case.output)
        self.cases[row] = case

    def remove(self, row: int) -> Case:
        for sampler in (self.cpu, self.gpu):
            sampler.remove_row(row)
        return self.cases.pop(row)

    def fork(self, row: int, source: int, index: int) -> None:
        for sampler in (self.cpu, self.gpu):
            sampler.fork_row(row, source, index)
        self.cases[row] = Case(**{**vars(self.cases[source]), "sequence_index": index})

    def logits(self, count: int) -> torch.Tensor:
        """Half of the time with many equals."""
        logits = torch.randn(count, self.vocab_size, generator=self.generator) * 2
        return logits if self.rng.random() < 0.5 else (logits * 2).round() / 2

    def step(self, rows: list[int]) -> list[int]:
        logits = self.logits(len(rows))
        expected = self.cpu.sample(logits.clone(), rows).tolist()
        assert self.gpu.sample(logits.to(self.device), rows).tolist() == expected
        for row, token in zip(rows, expected, strict=True):
            self.cases[row].output = [*self.cases[row].output, token]
        return expected

    def change(self) -> None:
        """Rows join, leave, are preempted and come back elsewhere, and fork."""
        free = [row for row in range(ROWS) if row not in self.cases]
        self.rng.shuffle(free)
        what = self.rng.choice(["join", "join", "leave", "preempt", "fork"])
        self.used.add(what)
        if what == "join" and free:
            self.add(free[0], random_case(self.rng, self.vocab_size))
        elif what == "fork" and free and self.cases:
            self.fork(free[0], self.rng.choice(list(self.cases)), self.rng.randint(4, 9))
        elif self.cases:
            case = self.remove(self.rng.choice(list(self.cases)))
            if what == "preempt":
                self.add(self.rng.choice([row for row in range(ROWS) if row not in self.cases]), case)


@pytest.mark.parametrize(("vocab_size", "steps", "seed"), [(40, 25, 0), (2100, 4, 2)])
def test_the_same_tokens_as_on_the_cpu(vocab_size: int, steps: int, seed: int, device: torch.device) -> None:
    """Rows with anything, in any company, that come and go."""
    pair = Pair(vocab_size, device, seed)
    for row in range(4):
        pair.add(row, random_case(pair.rng, vocab_size))
    for _ in range(steps):
        for _ in range(pair.rng.randint(0, 2)):
            pair.change()
        rows = [row for row in pair.cases if pair.rng.random() < 0.7]
        pair.rng.shuffle(rows)
        pair.step(rows)
    assert len(pair.used) == 4 or steps < 25
