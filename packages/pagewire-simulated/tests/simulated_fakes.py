"""A simulated runner behind the real scheduler, in this process."""

from collections import deque
from pathlib import Path
from typing import Any

from engine_core.intake.validation import Limits
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire_simulated.platform import SimulatedPlatform
from tests.engine_core.fakes import Ledger, make, run
from worker.load import load

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": [2, 7],
}


class InProcess:
    """A core's scheduler and a simulated worker. Blocks of 4 tokens."""

    def __init__(self, folder: Path, *, num_blocks: int = 512, budget: int = 4096, rows: int = 32) -> None:
        initialize = make_initialize(
            folder, num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=rows
        )
        self.runner, self.ready = load(initialize, SimulatedPlatform(WorkerConfig()))
        self._results: deque[Result] = deque()
        self.scheduler = Scheduler(
            num_blocks=num_blocks, block_size=4, max_num_seqs=rows, max_num_batched_tokens=budget
        )
        model = self.ready.model
        eos = frozenset(model.eos_token_ids)
        self.limits = Limits(
            *(model.vocab_size, model.max_model_len, rows, eos, num_blocks, 4),
            embedding_size=model.embedding_size,
        )

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker."""
        message = worker_pb2.StepPlan.FromString(encode_plan(plan).SerializeToString())
        self._results.append(decode_result(self.runner.execute(message), plan))

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        return self._results.popleft()

    def outputs(self, *messages: engine_pb2.AddRequest) -> dict[tuple[int, int], list[int]]:
        """What the sequences become, by (handle, index), with what was delivered before."""
        ledger = Ledger()
        for message in messages:
            for part in message.delivered:
                ledger.tokens[message.handle, part.index] = unpack_u32(part.token_ids)
            self.scheduler.add(make(message, self.limits))
        run(self.scheduler, self, ledger)  # type: ignore[arg-type]
        self.vectors = ledger.vectors
        return dict(ledger.tokens)


def make_initialize(folder: Path, **changes: Any) -> worker_pb2.Initialize:
    """Small limits, no waiting."""
    values: dict[str, Any] = {
        "model_path": str(folder),
        "device": "simulated",
        "profile": "instant",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "gpu_memory_utilization": 0.9,
    }
    return worker_pb2.Initialize(**(values | changes))
