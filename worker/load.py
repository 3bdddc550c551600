"""From `Initialize` to `Ready`: the same order on every device. Needs no torch."""

from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.config.audio import AudioConfig
from worker.config.hf_config import ModelConfig
from worker.executor.executor import B, StepExecutor
from worker.grammar.tokenizer import GrammarsToCome
from worker.kv_transfer.transfer import open_transfer
from worker.platforms.base import LoadedModel, LoadPlan, Platform, Report
from worker.speculation.options import read_speculation
from worker.startup.checks import check_cache_dtype, check_group, choose_max_model_len
from worker.startup.implementation import choose_implementation
from worker.weights.digest import begin_digest


def _ignore(what: str, fraction: float) -> None:
    """Reports nothing."""


def load(
    initialize: worker_pb2.Initialize, platform: Platform[B], report: Report = _ignore
) -> tuple[StepExecutor[B], worker_pb2.Ready]:
    """Returns what executes steps, warmed up, and what the core is told. Raises StartupError when anything
    does not fit."""
    plan = check(initialize, platform, report)
    digest = begin_digest(initialize)
    grammars = GrammarsToCome(initialize, plan.config.vocab_size, plan.config.eos_token_ids)
    model = platform.load_model(plan)
    executor = model.make_executor(grammars)
    model.warm_up(executor)
    prefill_us = model.prefill_us_per_token(executor)
    ready = make_ready(model, executor, platform.name, prefill_us)
    executor.transfer = open_transfer(initialize, model.block_memory(executor))
    if executor.transfer is not None:
        ready.transfer_address = executor.transfer.address
        ready.transfer_block_bytes = executor.transfer.block_bytes
    if digest is not None:
        ready.weights_digest = digest.result()
    model.finish(executor, ready)
    return executor, ready


def check(initialize: worker_pb2.Initialize, platform: Platform[B], report: Report = _ignore) -> LoadPlan:
    """Reads the configuration of the model, and checks what is requested. Raises StartupError."""
    check_group(platform.worker.rank, initialize, platform.name)
    platform.check(initialize)
    speculation = read_speculation(initialize, platform.name)
    config = choose_implementation(initialize, platform.name)
    check_cache_dtype(initialize.kv_cache_dtype, config)
    max_model_len = choose_max_model_len(initialize, config)
    return LoadPlan(initialize, config, max_model_len, speculation, report)


def _media_kinds(config: ModelConfig) -> list[engine_pb2.MediaKind]:
    """Returns the kinds of media that a model has an encoder for."""
    if config.vision is None:
        return []
    is_audio = isinstance(config.vision, AudioConfig)
    return [engine_pb2.MEDIA_KIND_AUDIO if is_audio else engine_pb2.MEDIA_KIND_IMAGE]


def make_ready(
    model: LoadedModel[B], executor: StepExecutor[B], device: str, prefill_us_per_token: float
) -> worker_pb2.Ready:
    """Returns what the core is told. Measures how long swapping takes."""
    plan, config, initialize = model.plan, model.plan.config, model.plan.initialize
    computes_on_host = device == "cpu" or (device == "simulated" and initialize.profile == "cpu")
    return worker_pb2.Ready(
        model=engine_pb2.ModelFacts(
            architecture=config.architecture,
            dtype=model.dtype_name,
            vocab_size=config.vocab_size,
            max_model_len=plan.max_model_len,
            eos_token_ids=config.eos_token_ids,
            weight_bytes=model.weight_bytes,
            arithmetic=model.exactness.arithmetic,
            exactness_caveat=model.exactness.caveat,
            adapters_caveat="" if executor.takes_adapters else model.adapters_caveat,
            max_adapters_per_step=model.max_adapters_per_step,
            implementation=config.implementation,
            embedding_size=config.state_size,
            head_sizes=executor.head_sizes,
            input_embedding_size=config.input_embedding_size if device in ("cpu", "cuda") else 0,
            kv_cache_dtype=initialize.kv_cache_dtype,
            quantization=model.quantization,
            grammar_engine=executor.backend.grammars.engine,
            whole_prompts=config.bidirectional,
            whole_media=any(config.whole_images),
            media_kinds=_media_kinds(config),
        ),
        max_item_vectors=0 if config.vision is None else config.vision.max_vectors,
        tokens_per_vector=model.tokens_per_vector,
        eos_origins=config.eos_origins,
        num_blocks=executor.rows.cache_blocks,
        kv_cache_bytes=model.cache_bytes(executor),
        has_states=config.has_states,
        num_state_checkpoints=initialize.state_checkpoints if config.has_states else 0,
        depends_on_prompt_len=config.depends_on_prompt_len,
        device=device,
        num_host_blocks=executor.backend.num_host_blocks,
        prefill_us_per_token=prefill_us_per_token,
        swap_us_per_block=model.swap_us_per_block(executor),
        draft_tokens=plan.most_drafts,
        draft_batch=0 if plan.speculation is None else plan.speculation.batch,
        takes_bursts=computes_on_host and plan.speculation is None,
    )
