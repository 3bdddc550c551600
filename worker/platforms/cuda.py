"""A CUDA device: Triton's kernels, memory by a profile of the largest steps, and graphs of steps."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from kernels.api import CacheLayout
from kernels.triton_ops import TritonOps
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.adapters.load import load_adapter
from worker.adapters.rows import AdapterRows
from worker.adapters.store import AdapterStore
from worker.config.audio import AudioConfig
from worker.config.hf_config import ModelConfig
from worker.cpu.rank_peers import RankPeers
from worker.cpu.rank_runner import with_times_of_first
from worker.cuda.backend import CudaBackend
from worker.cuda.device import Device
from worker.cuda.low_bits import LowBits
from worker.cuda.sampling.sampler import CudaSampler
from worker.cuda.startup.limits import (
    WHAT,
    check_kernels,
    check_sizes,
    check_weights,
    find_device,
    refuse_drafts,
    warn_of_float32,
)
from worker.cuda.startup.memory import (
    GIB,
    REUSED_BLOCKS,
    Demand,
    choose_num_blocks,
    largest_steps,
    useful_blocks,
)
from worker.cuda.startup.ranks import join_devices
from worker.cuda.startup.warm_up import CompileWatch, warm_up
from worker.exactness import on_cuda
from worker.executor.executor import StepExecutor
from worker.grammar.rows import GrammarRows
from worker.grammar.tokenizer import GrammarsToCome
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.latent import HeadLinear
from worker.memory.host_blocks import requested_blocks
from worker.memory.kv_cache import KVCache, block_bytes
from worker.memory.row_states import RowStates
from worker.memory.swap_space import make_swap_space
from worker.models.base import Family, LanguageModel
from worker.models.registry import family_of
from worker.models.staged import StagedModel
from worker.parallel import ALONE, Groups, Placement
from worker.platforms.base import LoadedModel, LoadPlan, Platform
from worker.pooling.heads import read_heads
from worker.pooling.vectors import Floats
from worker.speculation.options import check_exactness, make_speculator
from worker.startup.checks import check_quantization, refuse_second_quantization
from worker.startup.model import dtype_name, load_model, model_bytes, stored_dtype, tokens_per_vector
from worker.step.warmup_plans import Execute

logger = logging.getLogger(__name__)


class CudaPlatform(Platform[CudaBackend]):
    """A CUDA device."""

    name = "cuda"

    def __init__(self, worker: WorkerConfig, device: Device | None = None) -> None:
        """device: None for the device that is found."""
        super().__init__(worker)
        self._device = device

    def check(self, initialize: worker_pb2.Initialize) -> None:
        check_quantization(initialize.quantization, self.name)
        if initialize.quantization == "int4-g32":
            refuse_second_quantization(initialize.quantization, Path(initialize.model_path))

    def load_model(self, plan: LoadPlan) -> "LoadedOnCuda":
        torch.set_num_threads(1)  # the host launches; what it computes is a few numbers for each row
        initialize, config = plan.initialize, plan.config
        family = family_of(config)
        check_sizes(initialize, plan.max_model_len)
        device = self._device or find_device(self.worker.rank, plan.ranks)
        exactness = on_cuda(device.arithmetic, initialize.fast_matmul).with_cache(initialize.kv_cache_dtype)
        check_exactness(plan.speculation, exactness)
        if config.has_states:
            refuse_drafts(plan.speculation)

        groups, self.ranks = join_devices(initialize, config, self.worker.rank, device, plan.report)

        if isinstance(config.vision, AudioConfig):
            raise StartupError(WHAT, f"{config.architecture} hears sounds on CPUs alone", "use --device cpu")

        def check_dtype(dtype: torch.dtype) -> None:
            check_kernels(device, dtype, config, initialize.block_size, stored_dtype(initialize, dtype))

        def check_bytes(num_bytes: int, dtype: torch.dtype) -> None:
            check_weights(num_bytes, dtype, device, initialize.gpu_memory_utilization or 1.0)

        def checked(dtype: torch.dtype) -> torch.dtype:
            check_dtype(dtype)
            check_bytes(count_weight_bytes(family, config, dtype, groups), dtype)
            return dtype

        bits = LowBits(initialize.quantization, device.place, check_dtype, check_bytes)
        model, dtype = load_model(config, initialize, device.place, plan.report, checked, bits, groups=groups)
        model.compute_by(TritonOps(initialize.fast_matmul, device.place))
        store = None
        if initialize.max_loras and model.target_modules:
            store = AdapterStore(model, load_adapter, config.input_embedding_size, dtype)
        warn_of_float32(dtype)
        specs, checkpoints = model.state_specs(), initialize.state_checkpoints
        states = RowStates(specs, initialize.max_num_seqs, device.place, checkpoints) if specs else None
        facts = exactness, dtype_name(dtype), bits.quantization, model_bytes(model)
        return LoadedOnCuda(plan, *facts, device, model, dtype, states, store, groups, self.ranks)


def count_weight_bytes(
    family: Family, config: ModelConfig, dtype: torch.dtype, groups: Groups = ALONE
) -> int:
    """Returns the bytes of a rank's part of the model's weights without allocating them."""
    model = family.build(config, Placement(dtype, torch.device("meta"), groups.tensor, groups.stage))
    if groups.stage.count > 1:
        assert isinstance(model, StagedModel)
        model.keep(groups, config.hidden_size, dtype)
    return sum(parameter.nbytes for parameter in model.parameters())


@dataclass(frozen=True)
class LoadedOnCuda(LoadedModel[CudaBackend]):
    """A model on its device."""

    device: Device
    model: LanguageModel
    dtype: torch.dtype
    states: RowStates | None  # of rows; None: no layer has one
    adapters: AdapterStore | None  # None: none can be loaded
    groups: Groups = ALONE
    ranks: RankPeers | None = None  # the others of the worker; None: there are none
    watch: CompileWatch = field(default_factory=CompileWatch)

    def make_executor(self, grammars: GrammarsToCome) -> StepExecutor[CudaBackend]:
        self.watch.begin()
        num_blocks = self._find_num_blocks()
        self.plan.report("KV cache", 0.0)
        swaps = self.states is None and not self.plan.config.bidirectional
        swap_bytes = self.plan.initialize.swap_space_bytes if swaps else 0
        return self.assemble(num_blocks, swap_bytes, grammars.rows(self.plan.report))

    def _find_num_blocks(self) -> int:
        """Returns how many blocks fit beside the largest steps, which are run on a cache of one block. Raises
        StartupError."""
        self.plan.report("profile", 0.0)
        initialize, max_model_len, device = self.plan.initialize, self.plan.max_model_len, self.device
        captures, whole_prompts = not initialize.enforce_eager, self.plan.config.bidirectional
        size, most_tokens = initialize.block_size, initialize.max_num_batched_tokens
        memory, temporary, vision = device.memory(), 0, self.model.vision
        if max_model_len > 1:
            try:
                executor = self.assemble(1, 0)
                temporary = largest_steps(executor, most_tokens, captures, device, pools=whole_prompts)
                memory = device.memory()  # beside what an executor has of rows from its start
                del executor
            except torch.OutOfMemoryError as error:
                raise StartupError(
                    WHAT,
                    f"a step of {most_tokens} tokens does not fit on {device.name} beside the weights",
                    "use fewer --max-num-batched-tokens, a larger device, or a smaller model",
                ) from error
        per_sequence = -(-max_model_len // size)
        each = block_bytes(self.model.kv_cache_specs(), size, stored_dtype(initialize, self.dtype))
        demand = Demand(
            each,
            requested_blocks(initialize.num_blocks, initialize.kv_cache_bytes, each),
            useful_blocks(initialize, per_sequence, whole_prompts),
            per_sequence if initialize.max_model_len else 0,
            initialize.gpu_memory_utilization or 1.0,
            reused=0 if whole_prompts else REUSED_BLOCKS,
        )
        kept = 0 if vision is None else vision.kept_bytes(initialize)
        found = choose_num_blocks(memory, temporary + kept, demand, device.name)
        return self.groups.world.least(found)

    def assemble(
        self, num_blocks: int, swap_space_bytes: int, grammars: GrammarRows | None = None
    ) -> StepExecutor[CudaBackend]:
        """Returns an executor with this many blocks. grammars: of its rows. Raises StartupError."""
        plan, initialize, place = self.plan, self.plan.initialize, self.device.place
        stored = stored_dtype(initialize, self.dtype)
        layout = CacheLayout(initialize.block_size, num_blocks, self.dtype, place, stored=stored)
        cache = KVCache(self.model.kv_cache_specs(), layout)
        swap_space = make_swap_space(swap_space_bytes, cache)
        rows, most_tokens = plan.make_rows(num_blocks, plan.max_model_len), initialize.max_num_batched_tokens
        world = self.groups.world
        if grammars is not None:
            grammars.is_elsewhere = world.rank > 0
        sampler = CudaSampler(rows.max_num_rows, rows.vocab_size, place, grammars)
        sampler.group = world
        backend = CudaBackend(
            self.model,
            cache,
            swap_space,
            rows,
            sampler,
            most_tokens,
            self.device,
            1 + plan.most_drafts,
            self.states,
            AdapterRows(self.adapters) if self.adapters is not None else None,
            initialize.max_loras,
        )
        if self.ranks is not None:
            backend.check_ranks = self.ranks.check
        speculator = make_speculator(plan.speculation, rows, backend.grammars)
        heads = read_heads(initialize, plan.config.state_size, self._logits)
        return StepExecutor(rows, backend, most_tokens, speculator, self.adapters, heads)

    def _logits(self, states: Floats) -> Floats:
        """Returns the logits [N, V] of the embedding for states [N, E], which need not be the model's. Waits
        for them. Zeros on a rank without a head, whose answers are not read."""
        if self.model.gets_tokens:
            return np.zeros((len(states), self.plan.config.vocab_size), np.float32)
        with torch.inference_mode():
            found = self.device.fetch(self.model.logits(self.device.send(states).to(self.dtype)).float())
        self.device.record().synchronize()
        logits: Floats = found.numpy()
        return logits

    @property
    def max_adapters_per_step(self) -> int:
        return self.plan.initialize.max_loras

    @property
    def adapters_caveat(self) -> str:
        if self.model.target_modules is None:
            return super().adapters_caveat
        return "a GPU takes them where it starts with --lora, --lora-folder or --max-loras"

    def warm_up(self, executor: StepExecutor[CudaBackend]) -> None:
        initialize, report = self.plan.initialize, self.plan.report
        world, grouped = self.groups.world, has_grouped_products(self.model)
        with_experts = bool(-world.least(-int(grouped)))  # of any rank: all run the same steps
        warm_up(
            executor,
            initialize.max_num_batched_tokens,
            not initialize.enforce_eager,
            lambda fraction: report("warm-up", fraction),
            with_experts,
            pools=self.plan.config.bidirectional,
        )

    def timed(self, executor: StepExecutor[CudaBackend]) -> Execute:
        return with_times_of_first(self.groups.world, executor.execute)

    def cache_bytes(self, executor: StepExecutor[CudaBackend]) -> int:
        return executor.backend.cache.num_bytes

    @property
    def tokens_per_vector(self) -> int:
        return tokens_per_vector(self.model)

    def swap_us_per_block(self, executor: StepExecutor[CudaBackend]) -> float:
        return executor.backend.swap_space.measure_us_per_block()

    def finish(self, executor: StepExecutor[CudaBackend], ready: worker_pb2.Ready) -> None:
        ready.device = self.device.place.type  # that of a CPU in Triton's interpreter
        logger.info(
            "%s%s in %s%s on %s: %.1f GiB of weights, %d KV blocks (%.1f GiB), %d kernels compiled, %s",
            self.groups.describe(self.plan.config.num_layers),
            ready.model.architecture,
            self.dtype_name,
            f", weights in {self.quantization}" if self.quantization else "",
            self.device.name,
            self.weight_bytes / GIB,
            ready.num_blocks,
            ready.kv_cache_bytes / GIB,
            self.watch.count,
            "no graphs" if self.plan.initialize.enforce_eager else "steps in graphs",
        )
        self.watch.serving()


def has_grouped_products(model: torch.nn.Module) -> bool:
    """Returns whether any layer has a matrix for each expert, or for each head."""
    return any(isinstance(layer, ExpertMatrices | HeadLinear) for layer in model.modules())
