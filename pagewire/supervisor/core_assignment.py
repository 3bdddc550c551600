"""Assigns CPU cores to the processes of a service: some to the workers' threads, the rest to all others."""

import logging

from pagewire.checkpoints.paths import checkpoint_path
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host.cores import GPU, SMALL_MODEL_BYTES, CorePlan, affinity, available_cores, pin, plan_cores

log = logging.getLogger(__name__)


def share_cores(config: ServeConfig) -> CorePlan | None:
    """Decides on an assignment, logs it in one line and pins this process, whose children inherit that.
    Returns None when all processes may use all cores."""
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
    """Returns why the processes should share all cores, or an empty string."""
    if config.no_pinning:
        return "--no-pinning"
    if config.device not in ("auto", "cpu") or (config.device == "auto" and GPU.exists()):
        return "the worker does not compute on them"
    if available_cores() < cores:
        # Other containers have a part of these cores too, and would pin themselves to the same ones.
        return f"a control group grants the time of that many, of {cores}"
    if config.load_format != "dummy" and _weight_bytes(config.model) < SMALL_MODEL_BYTES:
        return "the model is small, and its worker has one thread"
    return ""


def _weight_bytes(model: str) -> int:
    """Returns the size of the checkpoint's weights; 0 for no checkpoint, which the engine core refuses."""
    try:
        path = checkpoint_path(model)
        files = [path] if path.is_file() else path.glob("*.safetensors")
        return sum(file.stat().st_size for file in files)
    except (StartupError, OSError):
        return 0
