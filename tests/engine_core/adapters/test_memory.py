"""Requests with adapters: loaded before they begin, in a bounded memory, and not taken from a request."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from engine_core.adapters.sources import MAX_DEATHS, AdapterOptions, AdapterSources
from engine_core.errors import Code
from engine_core.io.inbox import FrontendGone
from pagewire.internal.v1.engine_pb2 import (
    AdapterTable,
    AddRequest,
    Hello,
    ListAdapters,
    ListRequests,
    NamedAdapter,
    UnloadAdapter,
    Utility,
    WatchCache,
)
from pagewire.internal.v1.worker_pb2 import AdapterLoaded
from pagewire.limits import MAX_ADAPTERS
from pagewire.v1 import inspection_pb2 as pb
from tests.engine_core.fakes import adapter_digest, add_request
from tests.engine_core.house import House

PROMPT = list(range(10, 31))  # five blocks of 4 and one token


class Adapters(House):
    """A house with adapters of 10 bytes each, and memory for two of them."""

    def __init__(
        self, folder: Path, capacity: int = 20, names: Sequence[str] = "abcd", rows: int = 8
    ) -> None:
        self.folder = folder
        for name in (*names, "missing"):
            (folder / name).mkdir()
        super().__init__(adapters=AdapterOptions(AdapterSources(parent=str(folder)), capacity), rows=rows)
        self.worker.folders = {name: (adapter_digest(name), 10) for name in names}

    def put_one(self, handle: int, name: str, start: int = 0, **options: object) -> AddRequest:
        message = add_request(handle, PROMPT, **options)  # type: ignore[arg-type]
        adapter = message.adapter
        adapter.name, adapter.source, adapter.start = name, str(self.folder / name), start
        adapter.digest = adapter_digest(name)
        self.put(message)
        return message

    def load(self, name: str, folder: str = "", **options: object) -> None:
        source = str(self.folder / (folder or name))
        wanted = NamedAdapter(name=name, source=source, **options)  # type: ignore[arg-type]
        self.put(Utility(call_id=1, load_adapter=wanted))
        self.settle()

    def settle(self) -> None:
        """Steps until no call is under way."""
        while self.inbox or self.core.adapters.is_loading:
            self.step()

    def answers(self) -> list[tuple[str, str]]:
        """Names and reasons of the answers to calls about adapters."""
        results = [message.utility_result for _, message in self.sent if message.HasField("utility_result")]
        return [
            (each.adapter.adapter.name, each.adapter.reason) for each in results if each.HasField("adapter")
        ]

    def cached(self, handle: int) -> int:
        """Runs to the end; returns the tokens that a request has found in the prefix cache."""
        self.run()
        found = {}
        for _, message in self.sent:
            outputs = message.step_outputs
            for at in range(len(outputs.started_handles) // 8):
                number = int.from_bytes(outputs.started_handles[8 * at : 8 * at + 8], "little")
                found[number] = int.from_bytes(outputs.started_cached_tokens[4 * at : 4 * at + 4], "little")
        return found[handle]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Adapters]:
    made = Adapters(tmp_path)
    yield made
    made.inbox.close()


def test_loaded_when_a_request_needs_it(house: Adapters) -> None:
    house.put_one(1, "a", n=2)
    house.put_one(2, "a")
    house.put(add_request(3))
    house.run()
    assert {*house.outputs_of(b"a").ends} == {(1, 0), (1, 1), (2, 0), (3, 0)}
    assert house.worker.adapters == {adapter_digest("a")}


def test_the_least_recently_used_is_dropped(house: Adapters) -> None:
    for handle, name in enumerate("abac", start=1):
        house.put_one(handle, name)
        house.run()
    assert house.worker.adapters == {adapter_digest("a"), adapter_digest("c")}


@pytest.mark.parametrize("capacity", [10, 20, 1000])
def test_nothing_is_taken_from_a_request_and_all_get_their_turn(tmp_path: Path, capacity: int) -> None:
    """The fake worker refuses a row without its adapter. A stream of requests for one adapter keeps no other
    out."""
    house = Adapters(tmp_path, capacity)
    handle = 0
    for _ in range(6):
        for name in "aababcad":
            handle += 1
            house.put_one(handle, name, max_tokens=7)
        house.step(3)
        is_judged = house.core.adapters.is_loading  # one whose size the core does not know yet
        assert 10 * len(house.worker.adapters) <= capacity + 10 * is_judged
    house.run()
    assert len(house.outputs_of(b"a").ends) == handle and not house.failures()
    house.inbox.close()


def test_one_that_waits_has_a_cause(tmp_path: Path) -> None:
    house = Adapters(tmp_path, 10)
    house.put_one(1, "a", max_tokens=20, ignore_eos=True)
    house.step(3)
    house.put_one(2, "b")
    house.step(2)
    house.now = 4.0
    infos = [each for each in listed(house) if each.waits_for == pb.WAIT_CAUSE_ADAPTER]
    assert [each.phase for each in infos] == [pb.REQUEST_PHASE_PREPARING]
    house.run()
    waits = [message.step_outputs.started_waits_us for _, message in house.sent]
    assert int.from_bytes(max(waits, key=len)[16:20], "little") == 4_000_000
    house.inbox.close()


def listed(house: Adapters) -> list[pb.RequestInfo]:
    house.put(Utility(call_id=9, list_requests=ListRequests(limit=9)))
    while not any(message.utility_result.HasField("requests") for _, message in house.sent):
        house.step()
    return list(house.sent[-1][1].utility_result.requests.requests) or [
        info for _, message in house.sent for info in message.utility_result.requests.requests
    ]


def test_the_cache_is_keyed_by_the_digest(house: Adapters) -> None:
    """An adapter that begins later shares the base model's blocks up to there."""
    house.put(add_request(1, PROMPT))
    house.run()
    cases: list[tuple[Callable[[int], object], int]] = [
        (lambda handle: house.put_one(handle, "a"), 0),
        (lambda handle: house.put_one(handle, "a"), 20),
        (lambda handle: house.put_one(handle, "b"), 0),
        (lambda handle: house.put_one(handle, "b", 13), 12),
        (lambda handle: house.put_one(handle, "b", 13), 20),
        (lambda handle: house.put(add_request(handle, PROMPT)), 20),
    ]
    for handle, (put, found) in enumerate(cases, start=2):
        put(handle)
        assert house.cached(handle) == found


def test_gateways_are_told_the_adapter(house: Adapters) -> None:
    house.put(WatchCache(watch=1))
    house.step()
    house.put_one(1, "b", 9)
    house.run()
    stored = [each.stored for _, message in house.sent for each in message.cache_changes.changes]
    told = [(len(each.hashes) // 16, each.adapter, each.adapter_digest) for each in stored if each.hashes]
    assert told[0] == (2, "", b"") and {each[1:] for each in told[1:]} == {("b", adapter_digest("b"))}


def test_refused(house: Adapters, tmp_path: Path) -> None:
    """What cannot be loaded ends its requests alone, each with its reason."""
    outside = tmp_path / "a" / "outside"
    outside.mkdir()
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "loop").symlink_to("loop")
    house.worker.folders["huge"] = adapter_digest("huge"), 21
    changes: list[tuple[str, dict[str, object], str, Code]] = [
        ("a", {"digest": b""}, "INVALID_FIELD", Code.INVALID_ARGUMENT),
        ("a", {"start": len(PROMPT)}, "INVALID_FIELD", Code.INVALID_ARGUMENT),
        ("a", {"source": "/etc"}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("a", {"source": f"{tmp_path}/../elsewhere"}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("link", {}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("loop", {}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("a", {"source": f"{tmp_path}/a\0b"}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("a", {"source": f"{tmp_path}/{'x' * 5000}"}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("missing", {}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("huge", {}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
        ("a", {"digest": adapter_digest("other")}, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION),
    ]
    for handle, (name, fields, reason, code) in enumerate(changes, start=1):
        message = add_request(handle, PROMPT)
        message.adapter.name, message.adapter.source = name, str(tmp_path / name)
        message.adapter.digest = adapter_digest(name)
        for field, value in fields.items():
            setattr(message.adapter, field, value)
        house.put(message)
        house.put(add_request(100 + handle))
        house.run()
        failure = house.failures()[-1]
        assert (failure.handle, failure.reason, failure.code) == (handle, reason, code), failure
    assert len(house.failures()) == len(changes) and not house.scheduler.states.preparing
    for source in ("loop", "a\0b", "x" * 5000):
        house.load("x", source)
    odd = "ADAPTER_SOURCE_FORBIDDEN", "ADAPTER_SOURCE_FORBIDDEN", "ADAPTER_NOT_FOUND"
    assert [reason for _, reason in house.answers()] == list(odd), "and the core goes on"


def test_calls_that_wait_for_one_folder_share_its_load(
    house: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And requests that lack another one have their turns between such calls."""
    loads, load = [], house.worker.load_adapter

    def counted(number: int, source: str, digest: bytes, max_bytes: int) -> None:
        loads.append(Path(source).name)
        load(number, source, digest, max_bytes)

    monkeypatch.setattr(house.worker, "load_adapter", counted)
    for handle in range(8):
        house.put(Utility(call_id=handle, load_adapter=named(house, "missing")))
    house.put(Utility(call_id=8, load_adapter=named(house, "b")))
    house.put(Utility(call_id=9, load_adapter=named(house, "c")))
    house.put_one(1, "a")
    house.settle()
    assert loads == ["missing", "a", "b", "c"]
    assert house.answers() == [("missing", "ADAPTER_INVALID")] * 8 + [("b", ""), ("c", "")]


def test_one_that_cannot_fit_beside_pinned_ones_keeps_no_other_waiting(house: Adapters) -> None:
    """It is refused, and takes the memory of none."""
    house.worker.folders["a"] = adapter_digest("a"), 15
    house.load("a")
    house.load("b", pinned=True)
    house.load("c")
    house.put_one(1, "a")
    house.put_one(2, "c")
    house.step(4)
    assert [(each.handle, each.reason) for each in house.failures()] == [(1, "ADAPTER_CHANGED")]
    assert house.worker.adapters == {adapter_digest("b"), adapter_digest("c")}
    house.run()
    assert {*house.outputs_of(b"a").ends} == {(2, 0)}


def test_one_that_is_pinned_no_more_makes_room_at_once(house: Adapters) -> None:
    house.load("b", pinned=True)
    house.put_one(1, "c", max_tokens=40, ignore_eos=True)
    house.step(3)
    house.put_one(2, "a")
    house.step(3)
    assert adapter_digest("a") not in house.worker.adapters
    house.put(Utility(call_id=2, unload_adapter=UnloadAdapter(name="b")))
    house.step(3)
    assert house.worker.adapters == {adapter_digest("a"), adapter_digest("c")}
    house.run()


@pytest.mark.parametrize("folder", ["a", "b", "missing"])
def test_unload_during_a_load(folder: str, house: Adapters, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may have loaded the same adapter already when it is told to drop it."""
    house.load("x", "a")
    with monkeypatch.context() as patch:
        patch.setattr(house.worker, "take_adapters", list)
        source = str(house.folder / folder)
        house.put(Utility(call_id=2, load_adapter=NamedAdapter(name="y", source=source, pinned=True)))
        house.step(2)
        house.put(Utility(call_id=3, unload_adapter=UnloadAdapter(name="x")))
        house.step(2)
        assert len(house.answers()) == 2, "it does not wait for the load"
    house.settle()
    held = {adapter_digest(folder)} - {adapter_digest("missing")}
    assert house.worker.adapters == held
    house.put_one(1, "a")
    house.run()
    assert house.outputs_of(b"a").ends


def test_a_pinned_adapter_is_no_other_than_itself(tmp_path: Path) -> None:
    """Loaded again, or under another name, it takes no more memory; another one in its folder does."""
    house = Adapters(tmp_path, 15)
    for name in ("x", "x", "y"):
        house.load(name, "a", pinned=True)
    house.worker.folders["a"] = adapter_digest("new"), 10
    house.load("z", "a")
    assert house.answers() == [("x", ""), ("x", ""), ("y", ""), ("z", "ADAPTER_INVALID")]
    assert house.worker.adapters == {adapter_digest("a")}
    house.inbox.close()


def named(house: Adapters, name: str, **options: object) -> NamedAdapter:
    return NamedAdapter(name=name, source=str(house.folder / name), **options)  # type: ignore[arg-type]


def test_one_of_some_tenants_is_never_named_for_all(house: Adapters) -> None:
    """Not while it is being loaded, nor when its folder holds another one by then."""
    house.put(Utility(call_id=1, load_adapter=named(house, "a", tenants=["t"])))
    house.put(Utility(call_id=2, load_adapter=named(house, "a")))
    house.settle()
    for call, name in enumerate("bcd", start=3):
        house.put(Utility(call_id=call, load_adapter=named(house, name)))
    house.settle()
    house.worker.folders.clear()
    house.put_one(1, "a")
    house.put_one(2, "b")
    house.run()
    assert [failure.reason for failure in house.failures()] == ["ADAPTER_CHANGED"] * 2
    assert house.answers()[:3] == [("a", ""), ("a", "ADAPTER_NAME_IN_USE"), ("b", "")]
    table = house.core.adapter_names.table()
    assert [(each.name, list(each.tenants)) for each in table.adapters] == [
        ("a", ["t"]),
        ("c", []),
        ("d", []),
    ]


def test_names(house: Adapters) -> None:
    """Loaded, replaced while a request has it, listed, and unloaded when no request has it any more."""
    house.load("x", "a")
    house.load("x", "missing")
    house.load("y", "b", pinned=True)
    house.load("y", "b", tenants=["t"])
    house.load("../y", "b")
    assert house.answers() == [
        ("x", ""),
        ("x", "ADAPTER_INVALID"),
        ("y", ""),
        ("y", "ADAPTER_NAME_IN_USE"),
        ("../y", "INVALID_FIELD"),
    ]
    house.put_one(1, "a", max_tokens=20, ignore_eos=True)
    house.step(2)
    house.load("x", "c")
    house.put(Utility(call_id=2, list_adapters=ListAdapters()))
    house.step()
    table = next(m.utility_result.adapters for _, m in house.sent if m.utility_result.HasField("adapters"))
    assert [(each.name, each.digest[:1], each.loaded) for each in table.adapters] == [
        ("x", b"c", False),
        ("y", b"b", True),
    ], "there was no room for it beside one that runs and one that is pinned"
    assert house.worker.adapters == {adapter_digest("a"), adapter_digest("b")}
    house.put(Utility(call_id=3, unload_adapter=UnloadAdapter(name="y")))
    house.put(Utility(call_id=4, unload_adapter=UnloadAdapter(name="nothing")))
    house.run()
    assert house.answers()[-2:] == [("nothing", "ADAPTER_NOT_FOUND"), ("y", "")] or house.answers()[-2:] == [
        ("y", ""),
        ("nothing", "ADAPTER_NOT_FOUND"),
    ]
    assert adapter_digest("b") not in house.worker.adapters


def test_no_more_names_than_a_core_keeps(tmp_path: Path) -> None:
    """A folder may have any number of adapters. A name that is known may get another one all the same.
    Frontends hear of each name once, and what the worker holds."""
    names = [f"n{number}" for number in range(MAX_ADAPTERS + 1)]
    house = Adapters(tmp_path, 640, names)
    house.put(Hello())
    for name in names:
        house.put(Utility(load_adapter=named(house, name)))
    house.settle()
    *named_all, last = house.answers()
    assert named_all == [(name, "") for name in names[:-1]] and last == (names[-1], "TOO_MANY_ADAPTERS")
    results = [message.utility_result.adapter for _, message in house.sent]
    (refusal,) = [result for result in results if result.problem]
    assert (refusal.field, refusal.code) == ("name", Code.RESOURCE_EXHAUSTED), refusal
    tables = [message.adapters for _, message in house.sent if message.HasField("adapters")]
    assert [each.name for table in tables for each in table.adapters] == names[:-1]
    assert held_by(tables) == house.worker.adapters and len(house.worker.adapters) == 64
    house.load(names[0], names[-1])
    house.put(Utility(unload_adapter=UnloadAdapter(name=names[1])))
    house.load("new", names[1])
    assert house.answers()[MAX_ADAPTERS + 1 :] == [(names[0], ""), (names[1], ""), ("new", "")]
    assert len(house.core.adapter_names) == MAX_ADAPTERS
    house.put_one(1, names[0])
    house.run()
    assert house.outputs_of(b"a").ends, "requests that have resolved it before go on"
    house.inbox.close()


def held_by(tables: Sequence[AdapterTable]) -> set[bytes]:
    """What a frontend knows of the worker's adapters by these messages."""
    held = set[bytes]()
    for table in tables:
        for column, change in ((table.held_digests, held.add), (table.dropped_digests, held.remove)):
            for start in range(0, len(column), 32):
                change(column[start : start + 32])
    return held


def test_names_of_the_core_before(tmp_path: Path) -> None:
    """As many as a core keeps, in one message of each frontend; announced once."""
    house = Adapters(tmp_path)
    house.put(Hello())
    known = [named(house, f"n{number}", digest=adapter_digest("a")) for number in range(MAX_ADAPTERS + 1)]
    known[7].pinned = True
    for _ in range(3):
        house.put(AdapterTable(adapters=known))
    house.step()
    tables = [message.adapters for _, message in house.sent if message.HasField("adapters")]
    assert [len(table.adapters) for table in tables] == [MAX_ADAPTERS]
    assert house.core.adapters.pinned == {adapter_digest("a")} and not house.worker.adapters
    assert not house.answers(), "nothing waits for one"
    house.inbox.close()


def test_unload_waits_for_its_requests(house: Adapters) -> None:
    house.load("x", "a")
    house.put_one(1, "a", max_tokens=20, ignore_eos=True)
    house.step(3)
    house.put(Utility(call_id=3, unload_adapter=UnloadAdapter(name="x")))
    house.step(3)
    assert len(house.answers()) == 1 and house.worker.adapters
    house.run()
    house.step()
    assert len(house.answers()) == 2 and not house.worker.adapters


def test_named_again_by_a_frontend(house: Adapters) -> None:
    """A core that starts is told names by frontends: nothing is loaded before it is used."""
    house.load("x", "a", digest=adapter_digest("a"))
    assert house.answers() == [("x", "")] and not house.worker.adapters
    house.load("x", "a", digest=adapter_digest("b"))
    assert house.core.adapter_names.table().adapters[0].digest == adapter_digest("a"), "the first one counts"


def test_a_name_keeps_what_it_stood_for(house: Adapters) -> None:
    """All frontends are told, those that start later too; a core that starts learns it from frontends, also
    where it has found another adapter by itself. An unload ends it."""

    def former() -> list[str]:
        (table,) = house.core.adapter_names.table().adapters
        assert all(each.source and not each.former for each in table.former)
        return [each.digest[:1].decode() for each in table.former]

    house.put(Hello())
    for folder in "abcab":
        house.load("x", folder)
    assert former() == ["a", "c"]
    told = [message.adapters for _, message in house.sent if message.HasField("adapters")]
    assert [len(table.adapters[0].former) for table in told] == [0, 1, 2, 2, 2]
    earlier = NamedAdapter(name="x", digest=adapter_digest("old"), source="/old")
    earlier.former.add(name="x", digest=adapter_digest("c"), source="/c")
    earlier.former.add(name="x", digest=adapter_digest("d"), source="/d")
    house.load("x", "d", digest=adapter_digest("d"), former=[earlier])
    house.load("x", "d", digest=adapter_digest("d"), former=[earlier])
    assert former() == ["a", "c", "d", "o"]
    house.load("x", "b", digest=adapter_digest("e"), tenants=["t"])
    assert former() == ["a", "c", "d", "o"], "what is of some tenants is not made known to all"
    house.put(Utility(call_id=3, unload_adapter=UnloadAdapter(name="x")))
    house.settle()
    house.load("x", "b")
    assert former() == []


def test_an_adopted_worker_holds_no_more_than_fits(tmp_path: Path) -> None:
    """It has finished a load that the core before it ordered, whose size that core did not know."""
    held = tuple(AdapterLoaded(digest=adapter_digest(name), bytes=10) for name in "abc")
    house = House(adapters=AdapterOptions(AdapterSources(parent=str(tmp_path)), 20, held))
    assert [adapter_digest(name) in house.core.adapters for name in "abc"] == [False, True, True]
    house.inbox.close()


def test_a_frontend_that_was_taken_for_lost_hears_the_names(house: Adapters) -> None:
    hello = Hello(known_epoch=house.core.epoch)
    house.put(hello)
    house.step()
    house.inbox.put(FrontendGone(b"a"))
    house.load("x", "a")
    house.put(hello)
    house.put(hello)
    house.step()
    tables = [[each.name for each in m.adapters.adapters] for _, m in house.sent if m.HasField("adapters")]
    assert tables == [[], ["x"]], "once"


def test_one_that_kills_the_engine(tmp_path: Path) -> None:
    """Deaths in loads of one adapter are counted from core to core; other loads do not matter, nor cores that
    were killed alone."""
    counts = tmp_path / "counts"
    for _ in range(MAX_DEATHS):
        sources = AdapterSources(parent=str(tmp_path), deaths=counts, is_adopted=True)
        sources.begin(str(tmp_path / "bad"))
    AdapterSources(parent=str(tmp_path), deaths=counts, is_adopted=True).check(str(tmp_path / "bad"))
    for _ in range(MAX_DEATHS):
        sources = AdapterSources(parent=str(tmp_path), deaths=counts)
        sources.check(str(tmp_path / "bad"))
        sources.begin(str(tmp_path / "bad"))
    sources = AdapterSources(parent=str(tmp_path), deaths=counts)
    with pytest.raises(Exception, match="died 2 times while it loaded"):
        sources.check(str(tmp_path / "bad"))
    sources.begin(str(tmp_path / "good"))
    sources.end(str(tmp_path / "good"))
    sources.check(str(tmp_path / "good"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"a": []}', b"[" * 100_000])
def test_torn_counts_do_not_keep_the_core_from_starting(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "counts").write_bytes(content)
    AdapterSources(parent=str(tmp_path), deaths=tmp_path / "counts").check(str(tmp_path / "a"))
    assert "counts cannot be read" in caplog.text
