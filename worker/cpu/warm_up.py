"""Steps before the first request on a CPU."""

from worker.cpu.backend import CpuBackend
from worker.executor.executor import StepExecutor
from worker.step.warmup_plans import decode_plan, draft_plan, prefill_plan, removal_plan


def warm_up(runner: StepExecutor[CpuBackend]) -> None:
    """Computes one token of a prompt, one more, and one that is drafted: torch and the kernels set up on
    their first use what a request would otherwise wait for. The row is removed again."""
    rows = runner.rows
    if rows.max_model_len < 2:
        return
    first = prefill_plan([1], rows.block_size)
    runner.execute(first)
    if rows.block_size > 1 and rows.max_model_len > 2:
        runner.execute(decode_plan([1]))
    if runner.drafts and rows.block_size > 3 and rows.max_model_len > 4:
        runner.execute(draft_plan([2]))
    runner.execute(removal_plan(first))
