"""The rows and blocks of a beam search.

In the scheduler's eyes a search is one running sequence, its leader, which takes the others along: they are
FORKING for as long as they live, have blocks from the first choice on, and go into every plan in which the
leader goes. Nobody else needs to know of them: a search is admitted, preempted and ended by its leader.

    prompt        the leader computes it alone, as any sequence does; its row offers tokens
    advance()     the search chooses. The first child of a beam stays in the beam's row; the other ones go
                  to the rows of beams without children, as forks of the row of their parent. So every row
                  always carries a beam. Blocks are shared, and copied by whoever writes to them first.
    put()         the next plan tells the worker: forks, and the chosen tokens

What a beam computes next depends on all the others, so that a search sits out the plans that are made while
its last result is under way. A search that is preempted begins anew: nobody has heard of it yet.
"""

from __future__ import annotations

from array import array
from collections import Counter

from engine_core.beams import BeamParameters, BeamSearch, Offers
from engine_core.block_pool import InvariantError
from engine_core.block_tables import BlockTables
from engine_core.plan import ForkRow, Plan
from engine_core.request import Sequence
from engine_core.result import Result
from engine_core.rows import Rows


class BeamRows:
    """The search of one request, and the sequences that carry its beams."""

    def __init__(self, parameters: BeamParameters, sequences: list[Sequence]) -> None:
        """sequences: as many as the search is wide; the first one leads."""
        self.parameters = parameters
        self.search = BeamSearch(parameters)
        self.has_rows = False
        """Whether the worker has rows of all sequences, and not of the leader alone."""
        self._sequences = sequences
        self._carriers = sequences[:1]  # of the beams, in their order
        self._forks: list[ForkRow] = []  # since the last plan
        self._is_void = False  # the result that is under way is of a search that was given up

    @property
    def followers(self) -> list[Sequence]:
        """The sequences that the leader takes along now."""
        return self._sequences[1:] if self.search.length else []

    @property
    def num_tokens_lost(self) -> int:
        """Tokens that have to be computed again when the search begins anew."""
        return self._sequences[0].num_computed_tokens + len(self.followers) * self.search.length

    def reserve(self, tables: BlockTables, plan: Plan) -> bool:
        """Makes a slot for the next token of every beam writable; see BlockTables.reserve()."""
        if self.num_missing_blocks(tables) > tables.pool.num_free:
            return False
        for sequence in self._carriers:
            reserved = tables.reserve(sequence, sequence.num_tokens, plan)
            assert reserved, "the blocks were counted"
        return True

    def num_missing_blocks(self, tables: BlockTables) -> int:
        """Blocks that the next plan takes: new ones, and copies for all who write to a block but the last."""
        writers: Counter[int] = Counter()
        missing = 0
        for sequence in self._carriers:
            last = tables.blocks_for(sequence.num_tokens) - 1
            if last < len(sequence.blocks):
                writers[sequence.blocks[last]] += 1
            else:
                missing += 1
        return missing + sum(
            min(count, tables.pool.num_references(block) - 1) for block, count in writers.items()
        )

    def advance(self, offers: list[Offers], tables: BlockTables) -> None:
        """Takes in what the beams offer, in the order of `carriers`; search.done says whether that was all."""
        parents = self.search.advance(offers)
        if self.search.done:
            return
        before, kept = self._carriers, set(parents)
        staying = {before[parent] for parent in kept}
        free = iter([sequence for sequence in self._sequences if sequence not in staying])
        self._carriers = []
        for parent in parents:
            carrier = before[parent]
            if parent in kept:
                kept.remove(parent)
            else:
                carrier = next(free)
                tables.close(carrier)
                tables.fork(before[parent], carrier)
                self._forks.append(ForkRow(carrier.row, before[parent].row, carrier.index))
            self._carriers.append(carrier)
        for carrier, beam in zip(self._carriers, self.search.beams, strict=True):
            carrier.output = beam.output
            carrier.num_tokens = carrier.num_known_tokens
        leader = self._sequences[0]
        leader.num_slots = leader.num_computed_tokens  # whatever it has: it asks for all of them

    def put(self, plan: Plan, rows: Rows) -> None:
        """Tells the worker what was chosen; the beams go into this plan."""
        if self.has_rows:
            for fork in self._forks:
                rows.begin_again(fork.row)
        plan.forks += self._forks
        plan.append_rows += [carrier.row for carrier in self._carriers]
        plan.append_token_ids += [beam.output[-1] for beam in self.search.beams]
        self._forks = []
        self.has_rows = True

    def restart(self) -> None:
        """Rows and blocks are gone: the search begins anew."""
        self._is_void = self._sequences[0].num_tokens > self._sequences[0].num_known_tokens
        for sequence in self._sequences:
            sequence.num_tokens -= len(sequence.output)
            sequence.num_computed_tokens = 0
            sequence.output = array("I")
        self.search = BeamSearch(self.parameters)
        self._carriers = self._sequences[:1]
        self._forks = []
        self.has_rows = False

    def drop_void(self, sequence: Sequence) -> bool:
        """..."""
        return False

    def check_invariants(self) -> None:
        """Raises InvariantError unless each beam has its sequence."""
        outputs = [carrier.output for carrier in self._carriers]
        if outputs != [beam.output for beam in self.search.beams]:
            raise InvariantError("a beam is not where it is thought to be")
        if self.search.length and set(self._carriers) != set(self._sequences):
            raise InvariantError("a sequence carries two beams, or none")
        if len({carrier.num_computed_tokens for carrier in self._carriers}) != 1:
            raise InvariantError("beams have computed different numbers of tokens")
