"""The rows and blocks of a beam search.

In the scheduler's eyes a search is one running sequence, its leader, which takes the others along: they are
FORKING for as long as they live, have blocks from the first choice on, and go into every plan in which the
leader goes. Nobody else needs to know of them: a search is admitted, preempted and ended by its leader.

    prompt        the leader computes it alone, as any sequence does; its row offers tokens
    take()        the search chooses. The first child of a beam stays in the beam's row; the other ones go
                  to the rows of beams without children, as forks of the row of their parent. So every row
                  always carries a beam. Blocks are shared, and copied by whoever writes to them first.
    put()         the next plan tells the worker: forks, and the chosen tokens

What a beam computes next depends on all the others, so that a search sits out the plans that are made while
its last result is under way. A search that is preempted begins anew: nobody has heard of it yet.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from engine_core.beam_search.search import BeamParameters, BeamSearch, Offers
from engine_core.errors import InvariantError
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.request import Request, Sequence, Status
from engine_core.step.plan import ForkRow, Plan
from engine_core.step.result import Result
from engine_core.step.row_slots import Rows

T = TypeVar("T")


def split_offers(
    sampling: list[Sequence], samples: list[T], result: Result
) -> tuple[list[Sequence], list[T], dict[Request, dict[Sequence, Offers]]]:
    """Divides a result: the sequences that have sampled, their samples, and what the beams of requests that
    have not ended offer."""
    sequences: list[Sequence] = []
    kept: list[T] = []
    offers: dict[Request, dict[Sequence, Offers]] = {}
    end = 0
    for sequence, sample in zip(sampling, samples, strict=True):
        beams = sequence.request.beams
        if beams is None:
            sequences.append(sequence)
            kept.append(sample)
            continue
        start, end = end, end + beams.parameters.num_offers
        if sequence.status is not Status.ENDED:
            pairs = zip(result.beam_token_ids[start:end], result.beam_logprobs[start:end], strict=True)
            offers.setdefault(sequence.request, {})[sequence] = list(pairs)
    assert end == len(result.beam_token_ids), "each beam offers as many tokens as it was told to"
    return sequences, kept, offers


class BeamRows:
    """The search of one request, and the sequences that carry its beams."""

    def __init__(self, parameters: BeamParameters, sequences: list[Sequence]) -> None:
        """sequences: as many as the search is wide; the first one leads."""
        self.parameters = parameters
        self.search = BeamSearch(parameters)
        self.has_rows = False
        """Whether the worker has rows of all sequences, and not of the leader alone."""
        self.carriers = sequences[:1]  # of the beams, in their order
        self._sequences = sequences.copy()
        self._forks: list[ForkRow] = []  # since the last plan
        self.is_void = False
        """Whether the result that is under way is of a search that was given up."""

    @property
    def followers(self) -> list[Sequence]:
        """The sequences that the leader takes along now."""
        return self._sequences[1:] if self.search.length else []

    def are_all(self, indexes: Collection[int]) -> bool:
        """Whether these are the indexes of all results."""
        return set(indexes).issuperset(range(self.parameters.num_results))

    @property
    def num_tokens_lost(self) -> int:
        """Tokens that have to be computed again when the search begins anew."""
        return self._sequences[0].num_computed_tokens + len(self.followers) * self.search.length

    def reserve(self, tables: BlockTables, plan: Plan) -> bool:
        """Makes a slot for the next token of every beam writable; see BlockTables.reserve()."""
        if self.num_missing_blocks(tables) > tables.pool.num_free:
            return False
        for sequence in self.carriers:
            reserved = tables.reserve(sequence, sequence.num_tokens, plan)
            assert reserved, "the blocks were counted"
        return True

    def num_missing_blocks(self, tables: BlockTables) -> int:
        """Blocks that the next plan takes: new ones, and copies for all who write to a block but the last."""
        writers: Counter[int] = Counter()
        missing = 0
        for sequence in self.carriers:
            last = tables.blocks_for(sequence.num_tokens) - 1
            if last < len(sequence.blocks):
                writers[sequence.blocks[last]] += 1
            else:
                missing += 1
        return missing + sum(
            min(count, tables.pool.num_references(block) - 1) for block, count in writers.items()
        )

    def take(self, offers: Mapping[Sequence, Offers], tables: BlockTables) -> bool:
        """Takes in what the beams offer. Returns whether the search is over."""
        if self.is_void:
            self.is_void = False
            return False
        parents = self.search.advance([offers[carrier] for carrier in self.carriers])
        if not self.search.done:
            self._assign(parents, tables)
        return self.search.done

    def _assign(self, parents: list[int], tables: BlockTables) -> None:
        """Gives each new beam, of which these are the parents, a sequence that carries it."""
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

    def put(self, plan: Plan, rows: Rows) -> None:
        """The beams go into this plan: tells the worker what was chosen."""
        if self.has_rows:
            for fork in self._forks:
                rows.begin_again(fork.row)
        plan.forks += self._forks
        plan.append_rows += [carrier.row for carrier in self.carriers]
        plan.append_token_ids += [beam.output[-1] for beam in self.search.beams]
        self._forks = []
        self.has_rows = True
        leader = self._sequences[0]
        leader.num_slots = leader.num_tokens  # however many it has: it asks again for all of them

    def restart(self) -> None:
        """Rows and blocks are gone: the search begins anew. What is pending is passed over when it comes."""
        self.is_void = self._sequences[0].num_tokens > self._sequences[0].num_known_tokens
        for sequence in self._sequences:
            sequence.set_computed(0)
            sequence.replace_output(array("I"))
            sequence.hashes = []
        self.search = BeamSearch(self.parameters)
        self.carriers = self._sequences[:1]
        self._forks = []
        self.has_rows = False

    def forget_sequences(self) -> None:
        """The request has ended."""
        self._sequences, self.carriers = [], []

    def check_invariants(self) -> None:
        """Raises InvariantError unless each beam has its sequence."""
        outputs = [carrier.output for carrier in self.carriers]
        if outputs != [beam.output for beam in self.search.beams]:
            raise InvariantError("a beam is not where it is thought to be")
        if self.search.length and set(self.carriers) != set(self._sequences):
            raise InvariantError("a sequence carries two beams, or none")
        if len({carrier.num_computed_tokens for carrier in self.carriers}) != 1:
            raise InvariantError("beams have computed different numbers of tokens")
