"""A fake worker whose rows keep a state, as models with linear attention have it."""

from engine_core.step.plan import Plan
from tests.engine_core.fakes import FakeWorker


class StatefulFakeWorker(FakeWorker):
    """The state of a row is the history of the last token that it computed. It checks that each row goes on
    where its state has stopped, or begins: a state that was not restored, that is of another prefix, or that
    was written over too early is found at once."""

    def __init__(self, num_blocks: int, block_size: int, num_checkpoints: int) -> None:
        super().__init__(num_blocks, block_size)
        self.states: dict[int, int | None] = {}  # by row
        self.checkpoints: dict[int, int | None] = {}
        self.num_checkpoints = num_checkpoints
        self._ends: dict[int, int] = {}

    def execute(self, plan: Plan) -> list[int]:
        """See FakeWorker."""
        for row in plan.removed_rows:
            self.states.pop(row, None)
        for new in plan.new_rows:
            self.states[new.row] = None
        for fork in plan.forks:
            self.states[fork.row] = self.states[fork.source_row]
        for row, checkpoint in zip(plan.restore_rows, plan.restore_checkpoints, strict=True):
            assert any(new.row == row for new in plan.new_rows)
            self.states[row] = self.checkpoints[checkpoint]
        tokens = super().execute(plan)
        counts = plan.sample_counts and zip(
            plan.sample_rows, plan.sample_sources, self._sample_counts, strict=True
        )
        for row, source, count in counts or ():
            if row == plan.rows[source]:  # accepted drafts: a state holds them before the row's next step
                self.states[row] = self.rows[row].histories()[self._ends[row] + count - 2]
        return tokens

    def _compute(self, plan: Plan, num_drafts: dict[int, int]) -> None:
        known = {row: self.rows[row].histories() for row in plan.rows}
        for row, start in zip(plan.rows, plan.starts, strict=True):
            assert self.states[row] == (known[row][start - 1] if start else None), "a state does not fit"
        super()._compute(plan, num_drafts)
        computed = zip(plan.rows, plan.starts, plan.counts, strict=True)
        ends = {row: start + count - num_drafts.get(row, 0) for row, start, count in computed}
        self._ends = ends  # of what is certain
        begins = dict(zip(plan.rows, plan.starts, strict=True))
        assert len({*plan.save_checkpoints}) == len(plan.save_checkpoints)
        assert all(0 <= checkpoint < self.num_checkpoints for checkpoint in plan.save_checkpoints)
        saves = zip(plan.save_rows, plan.save_positions, plan.save_checkpoints, strict=True)
        for row, position, checkpoint in saves:
            assert begins[row] < position <= ends[row] and plan.save_rows.count(row) <= 2
            self.checkpoints[checkpoint] = known[row][position - 1]
        for row, end in ends.items():
            self.states[row] = known[row][end - 1]
        for row, source in zip(plan.sample_rows, plan.sample_sources, strict=True):
            self.states[row] = self.states[plan.rows[source]]
