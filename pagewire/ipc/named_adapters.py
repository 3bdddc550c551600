"""What the names of adapters stood for before."""

from collections.abc import Iterable

from pagewire.internal.v1.engine_pb2 import NamedAdapter

MAX_FORMER = 8
"""Adapters that a name stood for before, with which broken streams may go on."""


def keep_former(adapter: NamedAdapter, before: Iterable[NamedAdapter]) -> bool:
    """Adds adapters that had the name before to those that `adapter` lists, as far as they are not there and
    MAX_FORMER allows. before: the latest first. Returns whether any was added."""
    known = {adapter.digest, *(each.digest for each in adapter.former)}
    size = len(adapter.former)
    for each in before:
        if len(adapter.former) < MAX_FORMER and each.digest not in known:
            known.add(each.digest)
            adapter.former.add(
                name=each.name,
                source=each.source,
                digest=each.digest,
                invocation_token_ids=each.invocation_token_ids,
                virtual_tokens=each.virtual_tokens,
            )
    return len(adapter.former) > size
