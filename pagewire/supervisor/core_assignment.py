"""Whether the processes of a service keep to cores of their own: workers' threads here, all others there."""

import logging

from pagewire.checkpoint_paths import checkpoint_folder
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host.cores import GPU, SMALL_MODEL_BYTES, CorePlan, affinity, available_cores, pin, plan_cores

log = logging.getLogger(__name__)


def share_cores(config: ServeConfig) -> CorePlan | None:
    """Decides, and says so in one line. This process keeps to its cores from now on, as those that it
    starts do. None: everybody may use all of them."""
    cores = affinity()
    plan = plan_cores(
        cores, config.data_parallel_size, config.frontends + config.data_parallel_size, config.threads
    )
    why = _why_not(config, len(cores)) or ("" if plan else "they are too few to be divided")
    failure = pin(plan.others) if plan and not why else None
    if failure is not None:
        why = f"they cannot be pinned: {failure}"
    log.info("cores: %s", f"{available_cores()} for all processes: {why}" if why else plan)
    return None if why else plan


def _why_not(config: ServeConfig, cores: int) -> str:
    """Why the processes had better share their cores; empty: no reason."""
    if config.no_pinning:
        return "--no-pinning"
    if config.device not in ("auto", "cpu") or (config.device == "auto" and GPU.exists()):
        return "the worker need not compute on them"
    if available_cores() < cores:
        # Others have a part of these cores too, and would pin themselves to the same ones.
        return f"a control group grants the time of so many, of {cores}"
    if config.load_format != "dummy" and _weight_bytes(config.model) < SMALL_MODEL_BYTES:
        return "the model is small, and its worker has one thread"
    return ""


def _weight_bytes(model: str) -> int:
    """Of the checkpoint's files; 0 where there is none, which is for the engine core to refuse."""
    try:
        return sum(path.stat().st_size for path in checkpoint_folder(model).glob("*.safetensors"))
    except (StartupError, OSError):
        return 0
