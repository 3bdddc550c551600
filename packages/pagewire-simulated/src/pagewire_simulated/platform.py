"""A simulated device. Reads config.json and generation_config.json of the checkpoint; its weights may be
missing."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from kernels.cpu.runtime.rank_link import RankLink
from pagewire import __version__
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire_simulated.backend import HostLink, SimulatedBackend, sleep_precisely
from pagewire_simulated.clock import REAL_TIME, Clock
from pagewire_simulated.drafter import SimulatedDrafter
from pagewire_simulated.profiles import Profile, find_profile
from pagewire_simulated.roofline import Roofline
from pagewire_simulated.tokens import TokenSource
from pagewire_simulated.weights import WeightCounts, count_weights
from worker.config.hf_config import DTYPE_BYTES, ModelConfig
from worker.cpu.rank_memory import join, model_digest
from worker.exactness import Exactness
from worker.executor.executor import StepExecutor
from worker.fault_injection import Faults
from worker.grammar.tokenizer import GrammarsToCome
from worker.group_shape import group_shape
from worker.kv_transfer.memory import BlockMemory, EmptyMemory
from worker.memory.host_blocks import choose_num_host_blocks, requested_blocks
from worker.platforms.base import LoadedModel, LoadPlan, Platform, Report
from worker.speculation.options import make_speculator
from worker.startup.checks import check_quantization, check_shape, refuse_fast_matmul

logger = logging.getLogger(__name__)

DEFAULT_DTYPE = "bfloat16"
"""Used where neither the flag nor config.json names a dtype."""


def refuse_cache_dtype(kv_cache_dtype: str, device: str) -> None:
    """Raises StartupError when a dtype of keys and values is requested on a device that computes none."""
    if kv_cache_dtype:
        raise StartupError(
            f"cannot keep the KV cache in {kv_cache_dtype}",
            f"the device is {device}",
            "leave --kv-cache-dtype out, or use --device cpu or cuda",
        )


class SimulatedPlatform(Platform[SimulatedBackend]):
    """A machine that is described by a profile."""

    name = "simulated"

    def __init__(self, worker: WorkerConfig, clock: Clock = REAL_TIME) -> None:
        super().__init__(worker)
        self._clock = clock

    def check(self, initialize: worker_pb2.Initialize) -> None:
        find_profile(initialize.profile)
        check_quantization(initialize.quantization, self.name)
        refuse_fast_matmul(initialize.fast_matmul, self.name)
        refuse_cache_dtype(initialize.kv_cache_dtype, self.name)

    def load_model(self, plan: LoadPlan) -> "SimulatedModel":
        config, asked = plan.config, plan.initialize.dtype
        if config.has_states:
            raise StartupError(
                "cannot simulate this model",
                f"{config.architecture} keeps a state per row, of which a simulated device knows no cost",
                "simulate another model, or use --device cpu",
            )
        dtype = config.dtype or DEFAULT_DTYPE if asked in ("", "auto") else asked
        check_shape(config, *group_shape(plan.initialize))
        if plan.ranks > 1:
            self.join(plan.initialize, plan.report)
        weights = count_weights(config)
        facts = Exactness("simulated"), dtype, "", weights.total * DTYPE_BYTES[dtype] // plan.ranks
        return SimulatedModel(plan, *facts, weights, Faults(self.worker), self._clock, self.worker.rank)

    def join(self, initialize: worker_pb2.Initialize, report: Report) -> None:
        """Waits until all ranks of the worker are here and are found alike. Raises
        StartupError."""
        self.ranks = join(initialize, self.worker.rank, report, RankLink.plain)
        self.ranks.check_equal(
            {
                "pagewire": __version__,
                "profile": initialize.profile,
                "dtype": initialize.dtype,
                "model": model_digest(Path(initialize.model_path)),
            }
        )


@dataclass(frozen=True)
class SimulatedModel(LoadedModel[SimulatedBackend]):
    """A model of which only sizes are known."""

    weights: WeightCounts
    faults: Faults
    clock: Clock
    rank: int

    def make_executor(self, grammars: GrammarsToCome) -> StepExecutor[SimulatedBackend]:
        plan, config, initialize = self.plan, self.plan.config, self.plan.initialize
        profile = find_profile(initialize.profile).times(*group_shape(initialize))
        value_bytes, block_bytes = DTYPE_BYTES[self.dtype_name], self._block_bytes
        weight_bytes = self.weights.total * value_bytes
        num_blocks = choose_num_blocks(initialize, plan.max_model_len, profile, weight_bytes, block_bytes)
        num_host_blocks = choose_num_host_blocks(initialize.swap_space_bytes, block_bytes, available=math.inf)
        host_link = HostLink(num_host_blocks, block_bytes / profile.host_bandwidth)
        roofline = Roofline(config, self.weights, value_bytes, profile)
        rows, grammar_rows = plan.make_rows(num_blocks), grammars.rows(lambda *_: None)
        tokens = TokenSource(rows.max_num_rows, rows.vocab_size, config.eos_token_ids, grammar_rows)
        backend = SimulatedBackend(
            *(rows, tokens, roofline, host_link, self.faults, self.clock, config.state_size, config.vision),
            stages=group_shape(initialize)[1],
        )
        backend.adapter_bound.most = self.max_adapters_per_step
        drafter, speculation = None, plan.speculation
        if speculation is not None and speculation.method == engine_pb2.DRAFT_METHOD_SIMULATED:
            drafter = SimulatedDrafter(rows, tokens, speculation.acceptance)
        speculator = make_speculator(speculation, rows, grammar_rows, drafter)
        return StepExecutor(rows, backend, initialize.max_num_batched_tokens, speculator, tokens.adapters)

    @property
    def max_adapters_per_step(self) -> int:
        return self.plan.initialize.max_loras

    @property
    def _block_bytes(self) -> int:
        """Of the keys and values of a block's tokens in all layers."""
        value_bytes = DTYPE_BYTES[self.dtype_name]
        return self.plan.initialize.block_size * kv_token_bytes(self.plan.config, value_bytes)

    def warm_up(self, executor: StepExecutor[SimulatedBackend]) -> None:
        if self.clock is REAL_TIME:
            sleep_precisely()

    def cache_bytes(self, executor: StepExecutor[SimulatedBackend]) -> int:
        return executor.rows.cache_blocks * self._block_bytes // self.plan.ranks

    def swap_us_per_block(self, executor: StepExecutor[SimulatedBackend]) -> float:
        return 1e6 * executor.backend.host_link.seconds_per_block

    def prefill_us_per_token(self, executor: StepExecutor[SimulatedBackend]) -> float:
        longest = min(self.plan.initialize.max_num_batched_tokens, self.plan.max_model_len)
        return executor.backend.roofline.prefill_us_per_token(longest)

    def block_memory(self, executor: StepExecutor[SimulatedBackend]) -> BlockMemory | None:
        return EmptyMemory(executor.rows.cache_blocks) if self.plan.ranks == 1 else None

    def finish(self, executor: StepExecutor[SimulatedBackend], ready: worker_pb2.Ready) -> None:
        ready.depends_on_prompt_len = False  # no key is computed, of a rotation or otherwise
        if self.plan.speculation is None:
            ready.stages = group_shape(self.plan.initialize)[1]
        logger.info(
            "%ssimulating %s in %s on %s",
            f"rank {self.rank} of {self.plan.ranks}: " if self.plan.ranks > 1 else "",
            ready.model.architecture,
            self.dtype_name,
            find_profile(self.plan.initialize.profile).name,
        )


def kv_token_bytes(model: ModelConfig, value_bytes: int) -> int:
    """Returns the bytes of one token's keys and values in all layers."""
    return value_bytes * model.num_layers * model.kv_values


def choose_num_blocks(
    initialize: worker_pb2.Initialize,
    max_model_len: int,
    profile: Profile,
    weight_bytes: int,
    block_bytes: int,
) -> int:
    """Returns the number of blocks that fit beside the weights, up to what max_num_seqs sequences of full
    length can use. Raises StartupError when none fits, or fewer than requested."""
    free = int(profile.memory * initialize.gpu_memory_utilization) - weight_bytes
    affordable = max(0, free) // block_bytes
    requested = requested_blocks(initialize.num_blocks, initialize.kv_cache_bytes, block_bytes)
    if affordable < max(1, requested):
        raise StartupError(
            "cannot allocate the KV cache",
            f"the profile {profile.name} has room for {affordable} KV blocks of {block_bytes >> 10} KiB"
            f" beside {weight_bytes / 1e9:.1f} GB of weights",
            "use fewer --num-blocks or less --kv-cache-memory, a smaller model, or another --profile",
        )
    useful = initialize.max_num_seqs * -(-max_model_len // initialize.block_size)
    return requested or min(useful, affordable)
