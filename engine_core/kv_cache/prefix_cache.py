"""The prefix cache: which prefixes of sequences have their keys and values in blocks of the pool.

A full block is identified by a hash of all tokens up to its end, made from the hash of the block before:

    hash of 0 blocks = H(secret, tenant, salt)              hash_key.py has the secret
    hash of i blocks = H(hash of i - 1 blocks, content of block i - 1)

The content of a block is its token ids and, where something else stands in place of a token's embedding,
the hash of that. Equal hashes mean equal prefixes of one namespace (tenant and salt). Clients cannot make two
prefixes collide, nor find out by timing what other namespaces hold. The pool keeps the hash with the block,
also while the block is free, until it is allocated again.

A block is found as soon as a plan computes it: the same plan may admit a sequence that reads what another
sequence of the plan writes. worker.proto guarantees that: in each layer the keys and values of all rows are
stored before any row attends. (32 requests with a common prefix that arrive together compute it once. A
prompt that is cut is the last of its plan, so no sequence of that plan needs the rest of it.)

Where layers keep a state per row, a prefix is found up to where there is a checkpoint of its state as well
(state_checkpoints.py), which a plan before the sequence's own has saved.
"""

import logging
from collections.abc import Callable
from hashlib import blake2b, sha256
from itertools import islice
from secrets import token_bytes
from struct import pack

from engine_core.counters import HitRate
from engine_core.errors import InvariantError
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.cache_changes import CachedBlock, CacheLog, KeptChanges
from engine_core.kv_cache.state_checkpoints import StateCheckpoints
from engine_core.request import Request, Sequence
from engine_core.step.plan import Plan
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.ipc.columns import unpack_u32

log = logging.getLogger(__name__)

Contents = dict[int, bytes]
"""By block, or by checkpoint of a state; the least recently cached first."""
HASH_BYTES = 16
"""The secret leaves only accidents: one in 10^18 with as many as 10^10 blocks."""


class PrefixCache:
    """Finds the cached blocks of a prefix, and adds the blocks of sequences."""

    def __init__(
        self, pool: BlockPool, block_size: int, *, enabled: bool = True, num_checkpoints: int = 0
    ) -> None:
        """enabled: False: find() finds nothing, commit() adds nothing. num_checkpoints: of states, where
        layers have such; 0: none has."""
        self.hit_rate = HitRate()
        self.hash_block: Callable[[bytes, bytes], bytes] = block_hash
        """Returns the hash of a prefix that is one block longer. Another function in replays, which know
        hashes in place of tokens."""
        self._pool = pool
        self._block_size = block_size
        self._enabled = enabled
        self.secret = token_bytes(32)
        """The key of the first hash of each chain (hash_key.py), set before any request arrives."""
        self._checkpoints = StateCheckpoints(num_checkpoints, block_size) if num_checkpoints else None

    def track(self, changes: KeptChanges, kept: KeptCache) -> tuple[Contents, Contents]:
        """Has the worker follow the cache: `changes` is told all that enters and leaves it. To be called
        before any request arrives, and after `secret` is set.

        kept: what an adopted worker holds from the core before this one; empty: nothing. Returns the blocks
        and checkpoints that the cache goes on with.
        """
        if self._enabled:
            self._pool.changes = changes.blocks
            if self._checkpoints is not None:
                self._checkpoints.changes = changes.checkpoints
        try:
            blocks = _read_contents("blocks", kept.blocks, kept.contents)
            checkpoints = _read_contents("checkpoints", kept.checkpoints, kept.checkpoint_contents)
            self.restore(blocks, checkpoints)
        except ValueError as error:
            log.error("the cache of the last engine core is lost: %s", error)
            return {}, {}
        if blocks:
            log.info("%d cached blocks of the last engine core are found again", self.num_blocks)
        if checkpoints:
            log.info("%d checkpoints of states of the last engine core are found again", len(checkpoints))
        return blocks, checkpoints

    def restore(self, blocks: Contents, checkpoints: Contents) -> None:
        """Continues the cache of an earlier life: contents by block, and by checkpoint of a state, all made
        from the same secret. Raises ValueError, and changes nothing; see BlockPool and StateCheckpoints."""
        if not self._enabled:
            return
        if self._checkpoints is not None:
            self._checkpoints.check_kept(checkpoints)
        self._pool.restore(blocks)
        if self._checkpoints is not None:
            self._checkpoints.adopt(checkpoints)

    def find(self, sequence: Sequence) -> list[int]:
        """Returns the blocks of the longest cached prefix; they may be free, so share() them at once.

        Whole blocks only, and never all tokens: at least the last token is computed, for its logits. (Where
        it ends a block, that block is computed again into a new block. A copy would save all tokens but one,
        but copies are made before the plan computes, and could not read a block that the plan writes.)
        """
        if not self._serves(sequence.request):
            return []
        blocks = self._find_blocks(sequence)
        if self._checkpoints is None:
            return blocks
        return blocks[: self._checkpoints.longest(sequence.hashes, len(blocks))]

    def _find_blocks(self, sequence: Sequence) -> list[int]:
        """Returns the blocks of the longest prefix that are cached, with or without a state."""
        most = sequence.num_skippable_tokens // self._block_size
        self._extend_hashes(sequence, most)
        blocks = []
        for content in islice(sequence.hashes, 1, most + 1):
            block = self._pool.find(content)
            if block is None:
                break
            blocks.append(block)
        return blocks

    # Of states.

    def begin_plan(self) -> None:
        """A plan is being made."""
        if self._checkpoints is not None:
            self._checkpoints.begin_plan()

    def restore_state(self, sequence: Sequence, plan: Plan) -> None:
        """Has a sequence that was just admitted begin with the state behind its cached blocks."""
        if self._checkpoints is not None and self._serves(sequence.request):
            sequence.num_shared_blocks = len(self._find_blocks(sequence))
            self._checkpoints.restore(sequence, plan)

    def save_states(self, sequence: Sequence, start: int, plan: Plan) -> None:
        """Saves states of a sequence that computes its prompt from `start` to num_computed_tokens in a plan,
        and was committed since."""
        if self._checkpoints is not None and self._serves(sequence.request):
            last = sequence.num_skippable_tokens // self._block_size
            borders = sorted({last, min(sequence.num_shared_blocks, last)})
            self._checkpoints.save(sequence, start, borders, plan)

    def commit(self, sequence: Sequence) -> None:
        """Adds the blocks of a sequence that are full of known, computed tokens. Idempotent.

        A block whose content another block has already is not added; tables do not change.
        """
        full = self._num_full_blocks(sequence)
        if full == sequence.num_committed or not self._serves(sequence.request):
            return
        self._extend_hashes(sequence, full)
        for i in range(sequence.num_committed, full):
            self._pool.keep(sequence.blocks[i], sequence.hashes[i + 1])
        if self.log is not None:
            self._log_stored(self.log, sequence, sequence.num_committed, full)
        sequence.num_committed = full

    def distrust(self, sequence: Sequence) -> None:
        """Removes every block that may hold tokens of a sequence, also blocks that it has freed, and lets its
        request bypass the cache."""
        found = map(self._pool.find, sequence.hashes[1:])
        self._pool.forget(block for block in found if block is not None)
        if self._checkpoints is not None:
            self._checkpoints.forget(sequence.hashes)
        sequence.request.cache_bypass = True

    def reset(self) -> None:
        """Removes all blocks. Sequences keep theirs, and blocks that they fill from now on are added."""
        self._pool.forget_all()
        if self._checkpoints is not None:
            self._checkpoints.forget_all()

    def namespace(self, request: Request) -> bytes:
        """Returns the hash of no tokens, equal for requests that may share blocks; empty for a request that
        does not use the cache."""
        return self._root(request) if self._serves(request) else b""

    @property
    def moves(self) -> bool:
        """Whether a prefix is its blocks and nothing else, so that another cache can continue with copies."""
        return self._enabled and self._checkpoints is None

    def missing(self, sequence: Sequence) -> list[bytes]:
        """Returns the contents of the blocks that find() could return, and that are not cached."""
        if not (self.moves and self._serves(sequence.request)):
            return []
        most = sequence.num_skippable_tokens // self._block_size
        self._extend_hashes(sequence, most)
        return [content for content in sequence.hashes[1 : most + 1] if self._pool.find(content) is None]

    def adopt(self, block: int, content: bytes) -> None:
        """Adds a block that was allocated for it, and that holds this content by now."""
        self._pool.keep(block, content)

    def keeps(self, request: Request) -> bool:
        """Whether a computed prompt of the request is found again, as long as its blocks are kept."""
        return self._serves(request) and self._checkpoints is None

    def count(self, sequence: Sequence) -> None:
        """Counts what was found for a sequence that is admitted."""
        if self._serves(sequence.request):
            self.hit_rate.add(sequence.num_tokens, sequence.num_computed_tokens)
            if self.log is not None:
                self._log_stored(self.log, sequence, 0, sequence.num_committed)

    # The log.

    @property
    def log(self) -> CacheLog | None:
        """What the cache holds, with token ids, if that is logged."""
        return self._pool.log

    @property
    def num_blocks(self) -> int:
        """Blocks that can be found."""
        return self._pool.num_cached

    @property
    def num_checkpoints(self) -> int:
        """Checkpoints of states that can be found."""
        return self._checkpoints.num_saved if self._checkpoints is not None else 0

    def logged(self) -> CacheLog:
        """Returns the log, which is made by the first call."""
        if self._pool.log is None:
            self._pool.log = CacheLog()
        return self._pool.log

    def _log_stored(self, log: CacheLog, sequence: Sequence, start: int, end: int) -> None:
        """Logs blocks of a sequence that are in the cache, under their own content or in equal ones, before
        the first with something in place of a token."""
        request, size, use = sequence.request, self._block_size, sequence.request.parameters.adapter
        if (values := request.parameters.embeddings) is not None:
            end = min(end, int.from_bytes(values.positions[:4], "little") // size)
        if request.parameters.media:
            end = min(end, request.parameters.media[0].positions[0] // size)
        if use is not None and use.virtual_tokens:
            return
        for i in range(start, end):
            content = sequence.hashes[i + 1]
            if content not in log:
                parent = sequence.hashes[i] if i else b""
                tokens = sequence.token_bytes(i * size, (i + 1) * size)
                is_adapted = use is not None and use.start < (i + 1) * size
                adapter = (use.name, use.digest) if use is not None and is_adapted else ("", b"")
                log.stored(content, CachedBlock(parent, tokens, request.tenant, request.cache_salt, adapter))

    def check_invariants(self, sequence: Sequence) -> None:
        """Raises InvariantError unless a running sequence's blocks are cached under their own content.

        Blocks that it may still write to must not be cached. Cost: all tokens of the sequence.
        """
        size = self._block_size
        full = self._num_full_blocks(sequence)
        if sequence.num_committed > full:
            raise InvariantError("a block was cached before it was full")
        hashes = [self._root(sequence.request)]
        for i, block in enumerate(sequence.blocks):
            if i < full:
                content = sequence.block_content(i * size, (i + 1) * size)
                hashes.append(self.hash_block(hashes[-1], content))
            known = self._pool.content(block)
            if known is not None and (i >= sequence.num_committed or known != hashes[i + 1]):
                raise InvariantError(f"block {block} is cached under another content")
        if sequence.hashes[: full + 1] != hashes[: len(sequence.hashes)]:
            raise InvariantError("a sequence has hashes that are not those of its tokens")
        if self._checkpoints is not None:
            self._checkpoints.check_invariants()

    def _num_full_blocks(self, sequence: Sequence) -> int:
        """Blocks full of known, computed tokens. The last computed token may be pending."""
        return min(sequence.num_computed_tokens, sequence.num_known_tokens) // self._block_size

    def _serves(self, request: Request) -> bool:
        return self._enabled and not request.cache_bypass

    def _extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        """Extends sequence.hashes to so many blocks; each hash is computed once."""
        hashes, size = sequence.hashes, self._block_size
        if not hashes:
            hashes.append(self._root(sequence.request))
        for start in range((len(hashes) - 1) * size, num_blocks * size, size):
            hashes.append(self.hash_block(hashes[-1], sequence.block_content(start, start + size)))

    def _root(self, request: Request) -> bytes:
        """The hash of no tokens, from what separates namespaces."""
        names = [name.encode() for name in (request.tenant, request.cache_salt)]
        lengths = pack(f"<{len(names)}Q", *map(len, names))
        return blake2b(lengths + b"".join(names), digest_size=HASH_BYTES, key=self.secret).digest()


def block_hash(parent: bytes, content: bytes) -> bytes:
    """Returns the hash of a prefix that is one block longer. It inherits the secret through its parent.

    SHA-256, which processors have instructions for: 0.9 us for 16 tokens, where BLAKE2b takes 2.3.
    """
    return sha256(parent + content).digest()[:HASH_BYTES]


def _read_contents(what: str, places: bytes, contents: bytes) -> Contents:
    """Returns contents by place. Raises ValueError when the columns do not fit one another."""
    numbers, size = unpack_u32(places), HASH_BYTES
    if len(contents) != size * len(numbers) or len(set(numbers)) != len(numbers):
        raise ValueError(f"{len(numbers)} {what}, {len(contents)} bytes of contents")
    return {number: contents[size * at : size * (at + 1)] for at, number in enumerate(numbers)}
