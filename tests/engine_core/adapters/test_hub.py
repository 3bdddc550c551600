"""Adapters that are named as on the Hugging Face Hub."""

from pathlib import Path
from threading import Event

import pytest

from engine_core.adapters.hub import MAX_DOWNLOADS, HubAdapters
from engine_core.adapters.sources import AdapterOptions, AdapterSources
from engine_core.errors import Code, Refused
from pagewire.checkpoints.paths import HubName
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import AdapterResult, NamedAdapter, Utility
from tests.engine_core.fakes import adapter_digest, add_request
from tests.engine_core.house import House

COMMIT = "0123abc"


class Hub:
    """Has one adapter, org/x; its download ends when it may."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.asked, self.may_end = cache, list[HubName](), Event()
        self.may_end.set()

    def download(self, name: HubName, cache: str) -> Path:
        assert cache == str(self.cache)
        self.asked.append(name)
        self.may_end.wait()
        if name.repo == "org/broken":
            raise OSError("/home/someone/.cache is full")
        if name.repo == "org/full":
            raise StartupError("cannot load it", f"no space left: {self.cache}/models--org--full", "")
        if name.repo != "org/x":
            raise StartupError("cannot load it", "the hub has no such adapter", "check the name")
        return self.folder("models--org--x")

    def folder(self, repository: str, snapshots: str = "snapshots") -> Path:
        made = self.cache / repository / snapshots / COMMIT
        made.mkdir(parents=True, exist_ok=True)
        return made


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path.resolve())


def house_of(hub: Hub) -> House:
    sources = AdapterSources(hub=HubAdapters(("org", "someone"), str(hub.cache), hub.download))
    house = House(adapters=AdapterOptions(sources, 100))
    house.worker.folders = {COMMIT: (adapter_digest("x"), 10)}
    return house


def load(house: House, source: str) -> AdapterResult:
    """Steps until the call is answered."""
    before = len(house.sent)
    house.put(Utility(call_id=1, load_adapter=NamedAdapter(name="x", source=source)))
    while True:
        house.step()
        results = [each.utility_result for _, each in house.sent[before:] if each.HasField("utility_result")]
        if results:
            return results[0].adapter


@pytest.mark.parametrize("revision", [None, "v2"])
def test_an_adapter_is_downloaded_and_loaded(hub: Hub, revision: str | None) -> None:
    """Its name stands for the folder of what was downloaded: a later download changes no stream."""
    house = house_of(hub)
    answer = load(house, "org/x" + (f"@{revision}" if revision else ""))
    assert not answer.problem and answer.adapter.digest == adapter_digest("x")
    assert answer.adapter.source == str(hub.folder("models--org--x"))
    assert hub.asked == [HubName("org/x", revision)] and not house.core.adapter_names.is_changing
    again = house_of(hub)  # the next core is told the name, and loads the folder when it is used
    again.put(Utility(call_id=2, load_adapter=answer.adapter))
    message = add_request(1)
    message.adapter.name, message.adapter.source = "x", answer.adapter.source
    message.adapter.digest = adapter_digest("x")
    again.put(message)
    again.run()
    assert again.outputs_of(b"a").ends and len(hub.asked) == 1
    for each in (house, again):
        each.inbox.close()


def test_steps_go_on_meanwhile(hub: Hub) -> None:
    house = house_of(hub)
    hub.may_end.clear()
    house.put(Utility(call_id=1, load_adapter=NamedAdapter(name="x", source="org/x")))
    house.put(add_request(1))
    house.step(20)
    assert house.outputs_of(b"a").ends and house.core.adapter_names.is_changing
    hub.may_end.set()
    while house.core.adapter_names.is_changing or not len(house.core.adapter_names):
        house.step()
    house.inbox.close()


@pytest.mark.parametrize(
    ("source", "reason", "problem"),
    [
        ("other/x", "ADAPTER_SOURCE_FORBIDDEN", "source is in no namespace of --lora-hub"),
        ("org/missing", "ADAPTER_NOT_FOUND", "source cannot be downloaded: the hub has no such adapter"),
        ("org/full", "ADAPTER_NOT_FOUND", "source cannot be downloaded: no space left: the cache/models"),
        ("org/broken", "ADAPTER_INVALID", "source cannot be downloaded: OSError"),
        ("org/x/y", "ADAPTER_SOURCE_FORBIDDEN", "source is not a folder of --lora"),
    ],
)
def test_refused(hub: Hub, source: str, reason: str, problem: str) -> None:
    """With the field, and without paths of the server."""
    house = house_of(hub)
    answer = load(house, source)
    assert (answer.reason, answer.field) == (reason, "source") and answer.problem.startswith(problem)
    assert "someone" not in answer.problem and not len(house.core.adapter_names)
    house.inbox.close()


def test_calls_share_a_download_and_there_are_few(hub: Hub) -> None:
    adapters = HubAdapters(("org",), str(hub.cache), hub.download)
    hub.may_end.clear()
    first = adapters.begin("org/x")
    assert adapters.begin("org/x") is first is not adapters.begin("org/x@v2")
    others = [adapters.begin(f"org/x{number}") for number in range(2, MAX_DOWNLOADS)]
    with pytest.raises(Refused) as refused:
        adapters.begin("org/another")
    assert refused.value.code is Code.RESOURCE_EXHAUSTED and adapters.begin("org/x") is first
    hub.may_end.set()
    assert first is not None and first.result(60) == hub.folder("models--org--x")
    for each in others:
        assert each is not None and isinstance(each.exception(60), Refused)
    assert adapters.begin("org/x") is not first


def test_none_is_downloaded_without_the_flag(hub: Hub) -> None:
    with pytest.raises(Refused, match="--lora-hub") as refused:
        HubAdapters((), str(hub.cache), hub.download).begin("org/x")
    assert refused.value.code is Code.INVALID_ARGUMENT and not hub.asked


def test_folders_of_the_cache(hub: Hub) -> None:
    """Those of the namespaces alone."""
    adapters = HubAdapters(("org",), str(hub.cache))
    assert adapters.holds(hub.folder("models--org--x"))
    others = [
        hub.folder("models--organisation--x"),
        hub.folder("models--other--org--x"),
        hub.folder("models--org--x", "refs"),
        hub.folder("sub/models--org--x"),
        hub.folder("models--org--x").parent,
    ]
    assert not any(map(adapters.holds, others))
    assert not HubAdapters((), str(hub.cache)).holds(hub.folder("models--org--x"))
