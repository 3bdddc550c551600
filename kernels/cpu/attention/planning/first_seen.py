"""Where the positions that a query sees begin."""

from kernels.cpu.attention.records import PlanRecord


def first_seen(plan: PlanRecord, position: int) -> int:
    """The first position that the query at a position sees: of all, of its window, or of its chunk."""
    if plan.window == 0:
        return 0
    if plan.chunked:
        return position // plan.window * plan.window
    return max(0, position - plan.window + 1)
