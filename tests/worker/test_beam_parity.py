"""Beam search, from the scheduler to the model, gives what transformers gives.

Sequences must be equal. Their scores differ between candidates by more than what float32 rounds: the
checkpoints' weights are large, and a search that hangs on the last bits would fail here.
"""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.intake.validation import Limits
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import engine_pb2, worker_pb2
from tests.checkpoints import EOS_ID, VOCAB_SIZE
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import Ledger, add_request, make, run
from tests.worker.fakes import initialize
from worker.load import load
from worker.platforms.cpu import CpuPlatform

STOPS = [EOS_ID, *range(40, 100)]
"""So many tokens end a sequence that most searches have finished hypotheses early."""

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "many ends": {"stops": STOPS},
    "many ends, early stopping": {"stops": STOPS, "early_stopping": True},
    "short ones are better": {"stops": STOPS, "length_penalty": -0.5},
    "long ones are better": {"stops": STOPS, "length_penalty": 2.0},
    "no normalization": {"stops": STOPS, "length_penalty": 0.0},
    "not too short": {"stops": STOPS, "min_tokens": 5},
    "nothing twice": {"stops": STOPS, "repetition_penalty": 1.7},
    "without some tokens": {"stops": STOPS, "bad_token_ids": list(range(100, 240))},
    "two beams, early stopping, one result": {
        "stops": STOPS,
        "width": 2,
        "n": 1,
        "early_stopping": True,
    },
    "nine beams": {"stops": STOPS, "width": 9, "n": 9},
}


def prompt(seed: int, length: int = 11) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB_SIZE) for _ in range(length)]


def request(handle: int, tokens: list[int], case: dict[str, Any]) -> engine_pb2.AddRequest:
    """The search of a case, as a frontend sends it."""
    width = case.get("width", 4)
    search = beam_search(width, case.get("length_penalty", 1.0), case.get("early_stopping", False))
    message = add_request(
        handle,
        tokens,
        n=case.get("n", 3),
        beams=search,
        max_tokens=10,
        min_tokens=case.get("min_tokens", 0),
        stop_token_ids=[stop for stop in case.get("stops", []) if stop != EOS_ID],
    )
    message.sampling.repetition_penalty = case.get("repetition_penalty", 1.0)
    message.sampling.bad_token_ids.extend(case.get("bad_token_ids", []))
    return message


@torch.inference_mode()
def expected(model: Any, tokens: list[int], case: dict[str, Any]) -> list[list[int]]:
    """What transformers finds, the best first."""
    stops = case.get("stops", [EOS_ID])
    forbidden = case.get("bad_token_ids")
    found = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens)),
        do_sample=False,
        num_beams=case.get("width", 4),
        num_return_sequences=case.get("n", 3),
        length_penalty=case.get("length_penalty", 1.0),
        early_stopping=case.get("early_stopping", False),
        eos_token_id=stops,
        pad_token_id=0,
        max_new_tokens=10,
        min_new_tokens=case.get("min_tokens", 0),
        repetition_penalty=case.get("repetition_penalty", 1.0),
        suppress_tokens=forbidden,
    )
    return [_until_end(output[len(tokens) :], stops) for output in found.tolist()]


def _until_end(output: list[int], stops: list[int]) -> list[int]:
    """Without the padding."""
    end = next((place for place, token in enumerate(output) if token in stops), len(output))
    return output[: end + 1]


class InProcess:
    """A scheduler and a model in one process. The plans and results that go between them are encoded."""

    def __init__(self, folder: Path, *, blocks: int, rows: int, budget: int) -> None:
        command = initialize(folder, num_blocks=blocks, max_num_seqs=rows)
        self.runner, self.ready = load(command, CpuPlatform(WorkerConfig(threads=1)))
        self.scheduler = Scheduler(
            num_blocks=blocks, block_size=4, max_num_seqs=rows, max_num_batched_tokens=budget
        )
        self.limits = Limits(VOCAB_SIZE, 256, rows, frozenset({EOS_ID}), blocks, 4)
        self._results: deque[Result] = deque()

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker."""
        message = worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString())
        self._results.append(decode_result(self.runner.execute(message), plan))

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return self._results.popleft()

    def results(self, *messages: engine_pb2.AddRequest, ahead: bool) -> dict[tuple[int, int], list[int]]:
        """What becomes of the requests, by (handle, index)."""
        ledger = Ledger()
        for message in messages:
            self.scheduler.add(make(message, self.limits))
        run(self.scheduler, self, ledger, ahead=ahead)  # type: ignore[arg-type]
        return dict(ledger.tokens)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_equal_to_transformers(family: str, checkpoint: Callable[..., Path]):
    """All cases at once, with others that sample; then in a pool where searches are preempted."""
    folder = checkpoint(family)
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = {
        handle: (prompt(seed), case)
        for handle, (seed, case) in enumerate(
            ((seed, case) for seed in range(3) for case in CASES.values()), start=1
        )
    }
    answers = {
        (handle, index): output
        for handle, (tokens, case) in asked.items()
        for index, output in enumerate(expected(model, tokens, case))
    }
    messages = [request(handle, *of_request) for handle, of_request in asked.items()]
    roomy = InProcess(folder, blocks=600, rows=24, budget=4096)
    assert roomy.results(*messages, ahead=False) == answers
    tight = InProcess(folder, blocks=48, rows=20, budget=24)
    others = [add_request(handle, prompt(handle), max_tokens=30) for handle in range(100, 112)]
    results = tight.results(*messages, *others, ahead=True)
    assert {key: output for key, output in results.items() if key[0] < 100} == answers
    assert tight.scheduler.num_preemptions > 0
