"""Checkpoints of states, for models whose layers keep one state per row: what a prompt that shares its
beginning with others needs besides their blocks.

Blocks hold the keys and values of each token; a state holds all tokens of a row up to one position, and
cannot go back. So such a model finds a cached prefix only up to a block border for which the worker has saved
the state. The worker copies it while a step goes past that border: no step is cut for it. A slot has the
size of a row's state, so there are few, and the least recently used one is written over.

Two borders of a prompt are worth a slot: the last one that an equal or longer prompt could use, as the next
turn of a conversation does; and the one up to which the prompt's blocks were cached already, as with a common
system prompt: others have had this beginning, and the next one will find its state.

Where a core is killed, the next one adopts the worker's slots: each is named with the plan that saves it
(cache_changes.py).
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from engine_core.errors import InvariantError
from engine_core.kv_cache.cache_changes import ContentChanges
from engine_core.request import Sequence
from engine_core.step.plan import Plan


class StateCheckpoints:
    """The worker's slots 0 to num_slots - 1, each free or with the state behind a prefix of whole blocks."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.num_slots, self._block_size = num_slots, block_size
        self.changes: ContentChanges | None = None
        """Is told which slots hold what."""
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # by the prefix's hash, next to be evicted first
        self._free = list(range(num_slots - 1, -1, -1))
        self._planned: dict[bytes, int] = {}  # saved by the plan in the making: no plan before the next reads

    @property
    def num_saved(self) -> int:
        """Slots whose states can be found."""
        return len(self._slots)

    def check_kept(self, contents: Mapping[int, bytes]) -> None:
        """Raises ValueError for slots that there are not, and for a prefix that two slots have."""
        if len(set(contents.values())) != len(contents) or any(slot >= self.num_slots for slot in contents):
            raise ValueError("the checkpoints of states of an earlier life are not those of this one")

    def adopt(self, contents: Mapping[int, bytes]) -> None:
        """Goes on with slots that hold the states behind these prefixes from an earlier life, next to be
        written over first. To be called after check_kept(), before any state is saved."""
        assert len(self._free) == self.num_slots, "states were saved before"
        for slot, content in contents.items():
            self._slots[content] = slot
            if self.changes is not None:
                self.changes.kept(slot, content)
        self._free = [slot for slot in self._free if slot not in contents]

    def begin_plan(self) -> None:
        """What the last plan saves can be found from now on."""
        self._slots.update(self._planned)
        self._planned.clear()

    def longest(self, hashes: list[bytes], num_blocks: int) -> int:
        """Returns how many of a sequence's first blocks a checkpoint holds, at most `num_blocks`. hashes: of
        its first 0, 1, 2 ... blocks."""
        return next((i for i in range(num_blocks, 0, -1) if hashes[i] in self._slots), 0)

    def restore(self, sequence: Sequence, plan: Plan) -> None:
        """Has a sequence that was just admitted begin with the state behind its cached blocks."""
        computed = sequence.num_computed_tokens // self._block_size
        if computed:
            content = sequence.hashes[computed]
            self._slots.move_to_end(content)
            plan.restore_state(sequence.row, self._slots[content])

    def save(self, sequence: Sequence, start: int, borders: Iterable[int], plan: Plan) -> None:
        """Saves states of a sequence that computes tokens from `start` to num_computed_tokens in a plan.
        borders: numbers of blocks behind which they are wanted; the sequence has the hashes of these."""
        for border in borders:
            position = border * self._block_size
            if start < position <= sequence.num_computed_tokens:
                self._save(sequence, position, sequence.hashes[border], plan)

    def _save(self, sequence: Sequence, position: int, content: bytes, plan: Plan) -> None:
        if content in self._slots:
            self._slots.move_to_end(content)
        elif content not in self._planned and (self._free or self._slots):
            slot = self._free.pop() if self._free else self._evict()
            self._planned[content] = slot
            if self.changes is not None:
                self.changes.kept(slot, content)
            plan.save_state(sequence.row, position, slot)

    def _evict(self) -> int:
        _, slot = self._slots.popitem(last=False)
        if self.changes is not None:
            self.changes.forgotten(slot)
        return slot

    def forget(self, contents: Iterable[bytes]) -> None:
        """Removes the checkpoints of these prefixes."""
        for content in contents:
            for known in (self._slots, self._planned):
                if content in known:
                    self._free.append(slot := known.pop(content))
                    if self.changes is not None:
                        self.changes.forgotten(slot)
        if self.changes is not None:
            self.changes.on_loss()

    def forget_all(self) -> None:
        """Removes all checkpoints."""
        self._free += [*self._slots.values(), *self._planned.values()]
        self._slots.clear()
        self._planned.clear()
        if self.changes is not None:
            self.changes.forgot_all()
            self.changes.on_loss()

    def check_invariants(self) -> None:
        """Raises InvariantError unless each slot is free or has one content."""
        slots = [*self._free, *self._slots.values(), *self._planned.values()]
        if sorted(slots) != list(range(self.num_slots)):
            raise InvariantError(f"slots of checkpoints are lost or taken twice: {slots}")
