"""What loading needs of a device: checks before anything is read, a model with its weights, and what executes
steps of it. Needs no torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cpu.rank_peers import RankPeers
from worker.exactness import Exactness
from worker.executor.executor import B, StepExecutor
from worker.grammar.tokenizer import GrammarsToCome
from worker.group_shape import group_shape
from worker.kv_transfer.memory import BlockMemory
from worker.step.rows import RowTable
from worker.step.warmup_plans import Execute, measure_prefill

Report = Callable[[str, float], None]
"""Called with the name of a phase and the fraction of it that is done."""


@dataclass(frozen=True)
class LoadPlan:
    """What is loaded, once it is checked: nothing of it is allocated."""

    initialize: worker_pb2.Initialize
    config: ModelConfig
    max_model_len: int
    speculation: worker_pb2.Speculation | None
    report: Report

    @property
    def ranks(self) -> int:
        """Of the worker."""
        return math.prod(group_shape(self.initialize))

    @property
    def most_drafts(self) -> int:
        """The most drafted tokens of a row in a step."""
        return 0 if self.speculation is None else self.speculation.tokens

    def make_rows(self, num_blocks: int, longest: int | None = None) -> RowTable:
        """Returns an empty row table over so many blocks. longest: tokens of a row; None: the context, or as
        many as there are slots."""
        initialize, vocab_size = self.initialize, self.config.vocab_size
        longest = longest or min(self.max_model_len, num_blocks * initialize.block_size)
        return RowTable(initialize.max_num_seqs, longest, vocab_size, initialize.block_size, num_blocks)


@dataclass(frozen=True)
class LoadedModel(ABC, Generic[B]):
    """A model with its weights on a device, which can compute."""

    plan: LoadPlan
    exactness: Exactness
    dtype_name: str  # of activations, such as "bfloat16"
    quantization: str  # of the weights, as ModelFacts says it
    weight_bytes: int  # in the form in which they are computed with

    @abstractmethod
    def make_executor(self, grammars: GrammarsToCome) -> StepExecutor[B]:
        """Allocates the KV cache and the swap space, as large as requested or as fits. Raises
        StartupError."""

    @abstractmethod
    def warm_up(self, executor: StepExecutor[B]) -> None:
        """Executes steps whose first time takes longer, and leaves no row behind."""

    @abstractmethod
    def cache_bytes(self, executor: StepExecutor[B]) -> int:
        """Returns the bytes of the KV cache."""

    @abstractmethod
    def swap_us_per_block(self, executor: StepExecutor[B]) -> float:
        """Returns the microseconds that a block takes to the swap space or back; 0 where there is none."""

    @property
    def tokens_per_vector(self) -> int:
        """About how many tokens of a prompt take as long as a vector of the encoder; 0: it has none."""
        return 0

    @property
    def max_adapters_per_step(self) -> int:
        """Most adapters that the rows of a step may have; 0: any number."""
        return 0

    @property
    def adapters_caveat(self) -> str:
        """Why no adapters are taken, where none are."""
        return "adapters need a model of one of pagewire's families"

    def prefill_us_per_token(self, executor: StepExecutor[B]) -> float:
        """Returns the microseconds that a token of a long prompt takes."""
        size, rows = self.plan.initialize.block_size, executor.rows
        most_tokens = self.plan.initialize.max_num_batched_tokens
        longest = min(most_tokens, rows.max_model_len - 1, rows.cache_blocks * size)
        return measure_prefill(self.timed(executor), longest, size)

    def timed(self, executor: StepExecutor[B]) -> Execute:
        """Returns what executes steps whose durations are measured."""
        return executor.execute

    def block_memory(self, executor: StepExecutor[B]) -> BlockMemory | None:
        """Returns the blocks as bytes that threads may read and write beside the steps; None: they cannot."""
        return None

    @abstractmethod
    def finish(self, executor: StepExecutor[B], ready: worker_pb2.Ready) -> None:
        """Adds what only this device knows to what the core is told, and logs what was loaded in one line."""


class Platform(ABC, Generic[B]):
    """A device."""

    name: ClassVar[str]
    """Of the device: "cpu", "cuda" or "simulated"."""

    def __init__(self, worker: WorkerConfig) -> None:
        """worker: of this process."""
        self.worker = worker
        self.ranks: RankPeers | None = None
        """The other ranks of the worker, from load_model() on; None: there are none."""

    @abstractmethod
    def check(self, initialize: worker_pb2.Initialize) -> None:
        """Raises StartupError for flags that the device does not know, before the model is looked at."""

    @abstractmethod
    def load_model(self, plan: LoadPlan) -> LoadedModel[B]:
        """Reads the weights and chooses the kernels. Raises StartupError for a model that the device does not
        compute, before weights are read, and where they do not fit."""
