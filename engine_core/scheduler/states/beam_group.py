"""The sequences, rows and blocks of a beam search: the SequenceGroup of one request.

To the scheduler a search is one running sequence, the leader. The other sequences are followers: they stay
FOLLOWING, hold blocks from the first choice on, and enter every plan that the leader enters. A search is
admitted, preempted and ended by its leader.

    prompt        the leader computes it alone, as any sequence does; its row proposes tokens
    take()        the search chooses. The first child of a beam stays in the beam's row; the others move
                  to the rows of beams without children, as forks of their parent's row, so that every row
                  carries a beam. Blocks are shared, and copied when a sequence writes to a shared one.
    join()        the next plan carries the forks and the chosen tokens to the worker

The next step of a beam depends on all the others, so a search is in no plan that is made while its last
result is pending. A preempted search starts again: none of its tokens has been sent.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from engine_core.beam_search import BeamSearch
from engine_core.errors import InvariantError
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.request import Request, Sequence
from engine_core.scheduler.states.sequence_group import RowSlots, SequenceGroup
from engine_core.step.plan import ForkRow, Plan
from engine_core.step.result import TokenLogprobs


class BeamGroup(SequenceGroup):
    """The search of one request, and the sequences that carry its beams."""

    leads_others = True

    def __init__(self, request: Request) -> None:
        """The request has as many sequences as the search is wide; the first one leads."""
        super().__init__(request)
        assert request.beam_search is not None
        self.parameters = request.beam_search
        self.search = BeamSearch(self.parameters)
        self.carriers = request.sequences[:1]  # of the beams, in their order
        self.is_void = False
        """Whether the pending result belongs to a search that was given up."""
        self.can_swap = False
        self._sequences = request.sequences.copy()
        self._forks: list[ForkRow] = []  # since the last plan

    @property
    def followers(self) -> list[Sequence]:
        return self._sequences[1:] if self.search.length else []

    def fork(self, leader: Sequence, tables: BlockTables) -> list[Sequence]:
        """Forks nothing: beams fork when the search has chosen."""
        leader.num_slots = leader.num_tokens
        return []

    def writers(self, sequence: Sequence) -> Iterable[Sequence]:
        return self.carriers

    def reserve(self, sequence: Sequence, tables: BlockTables, plan: Plan) -> bool:
        if self._num_missing_blocks(tables) > tables.pool.num_free:
            return False
        for carrier in self.carriers:
            reserved = tables.reserve(carrier, carrier.num_tokens, plan)
            assert reserved, "the blocks were counted"
        return True

    def join(self, leader: Sequence, plan: Plan, rows: RowSlots) -> list[Sequence]:
        """Adds the forks and the chosen tokens to the plan; returns the followers."""
        if not self.search.length or leader.num_tokens > leader.num_slots:
            return []
        if self.followers_have_rows:
            for fork in self._forks:
                rows.begin_again(fork.row)
        plan.forks += self._forks
        plan.append_rows += [carrier.row for carrier in self.carriers]
        plan.append_token_ids += [beam.output[-1] for beam in self.search.beams]
        self._forks = []
        self.followers_have_rows = True
        leader.num_slots = leader.num_tokens  # however many it has: the next step reserves for all beams
        return self.followers

    def take(self, candidates: Mapping[Sequence, TokenLogprobs], tables: BlockTables) -> bool:
        """Advances the search with the candidates of each beam; returns whether it is over."""
        if self.is_void:
            self.is_void = False
            return False
        parents = self.search.advance([candidates[carrier] for carrier in self.carriers])
        if not self.search.done:
            self._assign(parents, tables)
        return self.search.done

    def num_tokens_lost(self, sequence: Sequence, tables: BlockTables) -> int:
        return self._sequences[0].num_computed_tokens + len(self.followers) * self.search.length

    def preempted(self) -> None:
        """Starts the search again. The pending result, if there is one, will be ignored."""
        self.is_void = self._sequences[0].num_tokens > self._sequences[0].num_known_tokens
        for sequence in self._sequences:
            sequence.set_computed(0)
            sequence.replace_output(array("I"))
            sequence.hashes = []
        self.search = BeamSearch(self.parameters)
        self.carriers = self._sequences[:1]
        self._forks = []
        self.followers_have_rows = False

    def ended_by(self, indexes: Collection[int]) -> Collection[int]:
        """All sequences once all results are given up; none before."""
        if indexes and not set(indexes).issuperset(range(self.parameters.num_results)):
            return ()
        return range(len(self._sequences))

    def results(self) -> list[array[int]] | None:
        return [hypothesis.output for hypothesis in self.search.results()]

    def is_finished(self) -> bool:
        return self.search.done

    def num_pending_plans(self, num_plans: int) -> int:
        return 0 if self.is_void else num_plans

    def clear(self) -> None:
        self._sequences, self.carriers = [], []

    def check_invariants(self) -> None:
        """Raises InvariantError unless each beam has its sequence."""
        outputs = [carrier.output for carrier in self.carriers]
        if outputs != [beam.output for beam in self.search.beams]:
            raise InvariantError("a sequence does not carry the beam that it should")
        if self.search.length and set(self.carriers) != set(self._sequences):
            raise InvariantError("a sequence carries two beams, or none")
        if len({carrier.num_computed_tokens for carrier in self.carriers}) != 1:
            raise InvariantError("beams have computed different numbers of tokens")

    def _num_missing_blocks(self, tables: BlockTables) -> int:
        """Blocks that the next plan takes: new ones, and copies for all writers of a block but the last."""
        writers: Counter[int] = Counter()
        missing = 0
        for carrier in self.carriers:
            last = tables.blocks_for(carrier.num_tokens) - 1
            if last < len(carrier.blocks):
                writers[carrier.blocks[last]] += 1
            else:
                missing += 1
        return missing + sum(
            min(count, tables.pool.num_references(block) - 1) for block, count in writers.items()
        )

    def _assign(self, parents: list[int], tables: BlockTables) -> None:
        """Gives each new beam a sequence that carries it. parents: of the new beams."""
        before, kept = self.carriers, set(parents)
        staying = {before[parent] for parent in kept}
        free = iter([sequence for sequence in self._sequences if sequence not in staying])
        self.carriers = []
        for parent in parents:
            carrier = before[parent]
            if parent in kept:
                kept.remove(parent)
            else:
                carrier = next(free)
                tables.close(carrier)
                tables.fork(before[parent], carrier)
                self._forks.append(ForkRow(carrier.row, before[parent].row, carrier.index))
            self.carriers.append(carrier)
        for carrier, beam in zip(self.carriers, self.search.beams, strict=True):
            carrier.replace_output(beam.output)
