"""What a name stood for before."""

from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.ipc.named_adapters import MAX_FORMER, keep_former


def named(digest: int, **fields: object) -> NamedAdapter:
    return NamedAdapter(name="x", digest=bytes([digest]), **fields)  # type: ignore[arg-type]


def test_the_latest_are_kept_once_each() -> None:
    adapter = named(0, former=[named(1)])
    assert keep_former(adapter, [named(0), named(2), named(2), named(1)])
    assert [each.digest[0] for each in adapter.former] == [1, 2]
    assert not keep_former(adapter, [named(2), named(0)])
    assert keep_former(adapter, map(named, range(3, 99)))
    assert [each.digest[0] for each in adapter.former] == list(range(1, MAX_FORMER + 1))


def test_what_is_kept_of_one() -> None:
    """What a request needs."""
    adapter, needed = named(0), named(1, source="/a", invocation_token_ids=[5, 6], virtual_tokens=3)
    before = named(1, source="/a", invocation_token_ids=[5, 6], virtual_tokens=3, rank=8, modules=["q_proj"])
    before.former.add(name="x", digest=b"2")
    keep_former(adapter, [before])
    assert list(adapter.former) == [needed]
