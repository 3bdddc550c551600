"""What the ranks of a group have in common: what they have loaded, and the steps that they execute."""

from collections.abc import Sequence

from engine_core.io.worker_process import SEE_ABOVE, WorkerDied
from pagewire.internal.v1.engine_pb2 import ModelFacts
from pagewire.internal.v1.worker_pb2 import Ready, StepResult


def combine_ready(ranks: Sequence[Ready]) -> Ready:
    """Returns the Ready of a group: blocks that every rank has, memory and threads of all, the slowest speed.

    Raises WorkerDied when the ranks have not loaded the same model.
    """
    for rank, ready in enumerate(ranks[1:], start=1):
        if _facts(ready) != _facts(ranks[0]):
            raise WorkerDied(
                "the ranks of the worker disagree",
                f"rank 0 has {_describe(ranks[0])}, rank {rank} has {_describe(ready)}",
                SEE_ABOVE,
            )
    combined = Ready()
    combined.CopyFrom(ranks[0])
    combined.num_blocks = min(ready.num_blocks for ready in ranks)
    combined.num_host_blocks = min(ready.num_host_blocks for ready in ranks)
    combined.prefill_us_per_token = max(ready.prefill_us_per_token for ready in ranks)
    combined.swap_us_per_block = max(ready.swap_us_per_block for ready in ranks)
    combined.kv_cache_bytes = sum(ready.kv_cache_bytes for ready in ranks)
    combined.num_threads = sum(ready.num_threads for ready in ranks)
    if any(ready.kept_cache != combined.kept_cache for ready in ranks):
        combined.ClearField("kept_cache")
    combined.model.weight_bytes = sum(ready.model.weight_bytes for ready in ranks)
    return combined


def check_same_step(first: StepResult, other: StepResult) -> None:
    """Raises ValueError unless a rank has executed the step of rank 0, and sampled nothing or the same."""
    if other.step != first.step:
        raise ValueError(f"step {other.step}, where rank 0 has executed step {first.step}")
    if other.token_ids not in (b"", first.token_ids):
        raise ValueError(f"step {other.step}: its tokens are not those of rank 0")


def _facts(ready: Ready) -> tuple[ModelFacts, str, bool, bool]:
    """Returns what must be equal on all ranks."""
    model = ModelFacts()
    model.CopyFrom(ready.model)
    model.ClearField("weight_bytes")
    return model, ready.device, ready.depends_on_prompt_len, ready.has_states


def _describe(ready: Ready) -> str:
    model = ready.model
    return f"{model.architecture} ({model.dtype}, context {model.max_model_len}) on {ready.device}"
