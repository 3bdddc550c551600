"""Whether there is a place for the one whose turn it is: a row, and blocks; and how it gets them."""

from engine_core.kv_cache.block_tables import BlockTables
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.request import Sequence
from engine_core.scheduler.sequence_states import SequenceStates
from engine_core.step.plan import NewRow, Plan


class Admission:
    """A row and blocks for those that wait."""

    def __init__(self, states: SequenceStates, tables: BlockTables, prefix_cache: PrefixCache) -> None:
        self._states, self._tables, self._prefix_cache = states, tables, prefix_cache
        self._refused: Sequence | None = None  # the last that did not fit, if nobody was admitted since
        self._lacked = 0  # blocks that it needed for itself and its siblings

    def look(self, sequence: Sequence) -> list[int] | None:
        """The cached blocks of a sequence for which there is a place; None: it has to wait."""
        if self.is_out_of_reach(sequence):
            return None
        cached = self._prefix_cache.find(sequence)
        return cached if self.fits(sequence, cached) else None

    def admit(self, sequence: Sequence, cached: list[int], plan: Plan) -> NewRow:
        """A sequence that fits gets rows and blocks, and runs; its row in the plan."""
        request = sequence.request
        assert sequence.num_tokens == sequence.num_known_tokens, "a plan that preempts admits nobody"
        self._refused = None
        self._states.admit(sequence, _slots_at_admission(sequence), cached, plan)
        new_row = NewRow(
            row=sequence.row,
            token_ids=sequence.token_ids(),
            prompt_len=len(request.prompt),
            blocks=sequence.blocks.copy(),
            sequence_index=sequence.index,
            parameters=request.parameters,
            num_beam_candidates=request.num_candidates,
        )
        plan.new_rows.append(new_row)
        return new_row

    def is_out_of_reach(self, sequence: Sequence) -> bool:
        """Whether a sequence did not fit lately, and there are still fewer blocks than it needed then.

        To look for its prefix again costs as much as the prefix is long, and the answer would be the same:
        whoever has come to hold some of it meanwhile took as many free blocks as that saves.
        """
        if sequence is not self._refused or not self._states.running:
            return False
        return self._lacked + self._room(sequence) > self._tables.pool.num_free

    def fits(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether there are rows for the sequence and its siblings, and blocks for the whole prompt.

        Of the cached ones, those that others hold cost nothing, and those that are free what all cost.

        Besides, a free block for every running sequence and sibling: they will ask for one soon, and
        somebody would be preempted for it. Whoever that was comes back only to more room each time, so
        that nobody goes back and forth. An empty engine admits whatever is valid.
        """
        siblings = len(sequence.request.forking) if sequence.leads else 0
        if 1 + siblings > len(self._states.rows.free):
            return False
        blocks = self._tables.missing(_slots_at_admission(sequence), cached) + siblings
        if blocks + self._room(sequence) <= self._tables.pool.num_free or not self._states.running:
            return True
        self._refused, self._lacked = sequence, blocks
        return False

    def _room(self, sequence: Sequence) -> int:
        """Free blocks that must be left for those that run."""
        return len(self._states.running) * (1 + sequence.request.num_preemptions)


def _slots_at_admission(sequence: Sequence) -> int:
    """All tokens and the next one; but the last token of a sequence needs no slot."""
    return min(sequence.num_tokens + 1, sequence.limit - 1)
