"""The sampler of the CUDA worker against that of the CPU, which is its definition: the same tokens.

Tokens must be equal: see tests/kernels/triton/sampling/test_sample.py.
"""

import random
from typing import Any

import pytest
import torch

from tests.worker.sampling_reference import Case
from worker.cuda.sampling.sampler import CudaSampler, Work
from worker.sampling.sampler import Sampler as CpuSampler
from worker.step.beams import NO_TOKEN

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
        self.cpu, self.gpu = CpuSampler(ROWS, vocab_size, CPU), CudaSampler(ROWS, vocab_size, device)
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


@pytest.mark.parametrize(("vocab_size", "steps", "seed"), [(40, 12, 0), (40, 12, 3), (2100, 4, 2)])
def test_the_same_tokens_as_on_the_cpu(vocab_size: int, steps: int, seed: int, device: torch.device) -> None:
    """Rows with any parameters, beside any others, that begin and end."""
    pair = Pair(vocab_size, device, seed)
    for row in range(4):
        pair.add(row, random_case(pair.rng, vocab_size))
    for _ in range(steps):
        for _ in range(pair.rng.randint(0, 2)):
            pair.change()
        rows = [row for row in pair.cases if pair.rng.random() < 0.7]
        pair.rng.shuffle(rows)
        pair.step(rows)
    assert len(pair.used) == 4 or steps < 12


def test_rows_that_begin_and_end_in_any_order(device: torch.device) -> None:
    """A row is given out again clean, at once; a fork overwrites another row; no rows at all."""
    pair = Pair(40, device, seed=5)
    loud = {"temperature": 0.0, "frequency_penalty": 1.0, "allowed_token_ids": list(range(9))}
    pair.add(0, Case(loud, bad_words=[[1, 2], [3]], stop_token_ids=[4], min_tokens=9))
    pair.add(1, Case({"temperature": 0.0}))
    assert pair.step([]) == []
    pair.step([0, 1])
    pair.add(0, Case({"temperature": 1.0, "seed": 3}))
    pair.step([0, 1])
    pair.add(2, Case(loud, bad_words=[[5, 6]]))
    pair.step([2, 0])
    pair.fork(0, 2, 1)
    pair.fork(2, 1, 1)
    for _ in range(3):
        pair.step([1, 0, 2])


def test_broken_logits_give_no_token(device: torch.device) -> None:
    """For that row alone, whatever it asks for; and the sampler goes on."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 3, "presence_penalty": 1.0, "bad_token_ids": [21]},
        {"temperature": 1.0, "typical_p": 0.5},
    ]
    for poison in (torch.nan, torch.inf, -torch.inf):
        pair = Pair(40, device, seed=6)
        for row, sampling in enumerate(kinds):
            pair.add(row, Case(sampling))
        pair.add(4, Case({"temperature": 0.0}))
        logits = pair.logits(5)
        logits[:4, slice(20, 21) if poison != -torch.inf else slice(None)] = poison
        rows = list(range(5))
        tokens = pair.gpu.sample(logits.clone().to(device), rows).tolist()
        assert tokens == pair.cpu.sample(logits.clone(), rows).tolist() == [NO_TOKEN] * 4 + tokens[4:]
        assert tokens[4] == logits[4].argmax()
        pair.step([4])


def test_ids_beyond_the_vocabulary(device: torch.device) -> None:
    """They cannot occur; allowing nothing else is an error."""
    pair = Pair(40, device, seed=7)
    sampling = {
        "temperature": 0.0,
        "logit_bias": {40: 9.0},
        "bad_token_ids": [41],
        "allowed_token_ids": [1, 40],
    }
    pair.add(0, Case(sampling, bad_words=[[1, 40], [40, 1]], stop_token_ids=[40], min_tokens=3))
    assert pair.step([0]) == [1]
    for sampler in (pair.cpu, pair.gpu):
        with pytest.raises(ValueError, match="allowed_token_ids"):
            sampler.add_row(1, Case({"allowed_token_ids": [40, 41]}).new_row(1), [0], [])


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, of the interpreter
@torch.inference_mode()
def test_beams_offer_and_are_appended_to(device: torch.device) -> None:
    """Penalties and masks come after the log-softmax, with what the core has appended."""
    pair = Pair(200, device, seed=8)
    pair.add(0, Case({"repetition_penalty": 1.5, "bad_token_ids": [7]}, prompt=[3, 4]))
    pair.add(1, Case(bad_words=[[5, 6]], stop_token_ids=[9], min_tokens=2))
    for most in (3, 40, 150):
        logits = pair.logits(2)
        found = pair.gpu.beam_candidates(logits.clone().to(device), [1, 0], most)
        for got, right in zip(found, pair.cpu.beam_candidates(logits.clone(), [1, 0], most), strict=True):
            torch.testing.assert_close(got.cpu(), right, rtol=1e-6, atol=2e-6)
        for sampler, place in ((pair.cpu, CPU), (pair.gpu, device)):
            sampler.append([0, 1], torch.tensor([4, 5], device=place))
    logits = torch.full((1, 200), torch.nan)
    assert pair.gpu.beam_candidates(logits.to(device), [0], 2)[1].isnan().all()


def test_padding_leaves_no_trace(device: torch.device) -> None:
    """A step of a captured size: its padding draws from rows of garbage and leaves no trace. Nor does a row
    that has been long enough for a while: what is written to stays where it is, or a graph could not."""
    pair = Pair(40, device, seed=9)
    pair.add(0, Case(bad_words=[[1, 2]], output=[3] * 30))  # outputs have room for so many
    for row in (3, 5):
        pair.add(row, Case({"temperature": 1.0, "seed": row}, stop_token_ids=[1], min_tokens=2))
    pair.step([3, 5])
    pair.step([3, 5])
    outputs, numbers = pair.gpu._bans.prohibitions.outputs, pair.gpu._parameters.positions
    before = outputs.clone()
    for _ in range(2):
        logits = pair.logits(8)
        expected = pair.cpu.sample(logits[:2].clone(), [5, 3])
        assert (work := pair.gpu.begin([5, 3])) == Work.DRAW
        rows = torch.tensor([5, 3] + [pair.gpu.padding] * 6, device=device)
        assert torch.equal(pair.gpu.choose(logits.to(device), rows, work)[:2].cpu(), expected)
    assert pair.gpu._bans.prohibitions.outputs is outputs and torch.equal(outputs, before)
    assert pair.gpu._parameters.positions.data_ptr() == numbers.data_ptr()


@pytest.mark.gpu
def test_on_a_gpu_it_can_be_captured_and_never_waits() -> None:
    """A graph of choose() draws the tokens that the CPU draws; whatever rows ask for, nothing waits."""
    device = torch.device("cuda")
    pair = Pair(40, device, seed=10)
    for row in (3, 5):
        pair.add(row, Case({"temperature": 1.0, "seed": row}))
    pair.step([5, 3])  # what is compiled on first use cannot be captured
    logits = torch.zeros(2, 40, device=device)
    rows = torch.tensor([5, 3, pair.gpu.padding, pair.gpu.padding], device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        tokens = pair.gpu.choose(logits, rows, Work.DRAW)
    for _ in range(3):
        given = pair.logits(2)
        logits.copy_(given)
        assert pair.gpu.begin([5, 3]) == Work.DRAW
        graph.replay()
        assert tokens.tolist() == pair.cpu.sample(given.clone(), [5, 3]).tolist()
    for step in range(2):  # in the first one kernels are compiled, which may wait
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            for row in (0, 1, 2, 4, 6):
                case = random_case(pair.rng, 40)
                pair.gpu.add_row(row, case.new_row(row), case.prompt, case.output)
            pair.gpu.sample(torch.randn(7, 40, device=device), list(range(7)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
