"""Which engine cores were lately sent which prefixes, so that a core that lacks one can copy it from another.

These are hints: blocks are evicted, and prompts may not be computed yet. The core that gets a request asks
the holder for the blocks that it lacks, by their names, and computes what it does not get.

A prompt is known by its first 1, 2, 3, 4, 6, 8, 12, 16 ... blocks, two lengths for each doubling: few entries
for a long prompt, and a prefix that two prompts share is found up to two thirds of its length at least.
"""

from collections import OrderedDict
from collections.abc import Collection
from hashlib import blake2b
from itertools import count
from struct import pack

from pagewire.internal.v1 import engine_pb2

MAX_PREFIXES = 1 << 16
"""That are remembered; those that were not sent for the longest time are forgotten."""
MAX_CORES = 4
"""Of one prefix: those that got it last."""
_TOKEN_BYTES = 4


class SentPrefixes:
    """The prefixes that this frontend has sent."""

    def __init__(self, most: int = MAX_PREFIXES) -> None:
        self._addresses: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()  # by prefix; the last one last
        self._most = most

    def __len__(self) -> int:
        return len(self._addresses)

    def find(self, names: list[bytes], address: str, others: Collection[str]) -> str:
        """Returns which of other addresses got the longest of these prefixes; empty: none got a longer one
        than `address`. names: as names_of() returns them."""
        for name in reversed(names):
            known = self._addresses.get(name, ())
            if address in known:
                return ""
            for other in reversed(known):
                if other in others:
                    return other
        return ""

    def note(self, names: list[bytes], address: str) -> None:
        """A core gets a request with these prefixes."""
        for name in names:
            known = self._addresses.pop(name, ())
            self._addresses[name] = (*(each for each in known if each != address), address)[-MAX_CORES:]
        while len(self._addresses) > self._most:
            self._addresses.popitem(last=False)


def names_of(request: engine_pb2.AddRequest, block_size: int) -> list[bytes]:
    """Returns names of prefixes of a prompt, the shortest first: equal for equal tokens of requests that may
    share blocks. None for a request that uses no cache, or has values in place of tokens."""
    if request.cache_bypass or request.HasField("embeddings") or request.media:
        return []
    tokens, step = request.prompt_token_ids, block_size * _TOKEN_BYTES
    names: list[bytes] = []
    parts = [each.encode() for each in (request.tenant, request.cache_salt)]
    parts.append(request.adapter.digest)
    digest = blake2b(pack("<3Q", *map(len, parts)) + b"".join(parts), digest_size=16)
    begin = 0
    for length in _lengths():
        if length * step > len(tokens):
            return names
        digest.update(tokens[begin : length * step])
        begin = length * step
        names.append(digest.digest())
    raise AssertionError


def _lengths() -> "map[int]":
    """Returns 1, 2, 3, 4, 6, 8, 12 ..."""
    return map(lambda n: 1 if n < 0 else (2 << n // 2) + (1 << n // 2) * (n % 2), count(-1))
