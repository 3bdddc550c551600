"""Sizes of attention's work, of a thread's scratch memory, and of the results of parts; in bytes, where
nothing else is said. Needs no llvmlite."""

from kernels.cpu.attention.records import PartPlace

AHEAD = 8
"""Tiles asked for before they are needed: 16 KiB with a head size of 64. Twice as many gain nothing."""
PART = 512
"""Positions. A prompt's attention takes 4 % longer in parts of 256, which are found and merged more often. In
parts of 512 two threads share 3000 positions of a row evenly, and scores stay in the first-level cache."""
QUERIES = 8
"""(query, head) pairs of an item: registers are enough for so many."""
SCORES = 64 * (PART // 16 + 1)
"""Bytes of a pair's scores; one tile more than there are: see score(). A constant, as the queries' distances
are: an address for each pair would take more registers than there are."""
QUERY = 1024 + 64
"""Bytes from one query of an item to the next: a constant too. A power of two would have all of them in the
same few places of the first-level cache."""
MOST_QUERY = QUERY - 64
"""Bytes of the largest query."""
MOST_LATENT = 1024
"""Values of the largest latent with its rotary part, and of a query over latents."""
LATENT_QUERY = 4 * MOST_LATENT + 64
"""As QUERY, over latents: float32, whatever these are."""
LEAST_SHARED = 64
"""Positions that two rows in an item have in common. Fewer gain less than it costs to go over them
together."""
LOOKED_AT = 32
"""Earlier items with which a row may be paired: so that many rows cost no more each than some do."""
LIST = PartPlace.size()
PLACE = 1280
"""Bytes of a place with its list, which has 4 * PART // 16 + AHEAD + QUERIES entries at most: two rows may
share nothing of a part."""
QUERIES_AT = QUERIES * SCORES
"""Where an item's queries are in a thread's scratch memory. Behind them are the first position that each of
them sees and the last one, then two results."""


def row_values(head_dim: int) -> int:
    """Returns the values of a pair's sums: whole vectors of both loops."""
    return (head_dim + 31) // 32 * 32


def partial_bytes(value_dim: int) -> int:
    """Returns the bytes of a part's result."""
    return 32 * row_values(value_dim) + 128


def scratch_bytes(head_dim: int, query: int = QUERY) -> int:
    """Returns what one thread needs: two places, scores, queries, two results, the last pair. A multiple of
    256. query: bytes from one query of an item to the next."""
    size = 2 * PLACE + QUERIES_AT + QUERIES * query + 64
    size += 2 * partial_bytes(head_dim) + 4 * row_values(head_dim) + 64
    return -(-size // 256) * 256
