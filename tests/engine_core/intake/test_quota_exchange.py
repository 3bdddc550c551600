"""Quotas that hold for several cores and across restarts: what cores tell one another by files."""

from pathlib import Path

import pytest

from engine_core.intake.quota_exchange import INTERVAL_S, STALE_S, QuotaExchange, QuotaFile, quota_path
from pagewire.internal.v1.engine_pb2 import TenantTerms
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

SLOW = TenantTerms(max_tokens_per_minute=60)
FEW = TenantTerms(max_requests=2)


class Cores:
    """Engine cores whose files share a folder; all clocks are one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._houses: list[House] = []
        self.now = 1000.0

    def start(self, name: str, start: int = 1) -> House:
        house = House()
        house.now = self.now
        intake = house.core.intake
        path = QuotaFile(quota_path(f"ipc://{self._folder}/{name}"))
        intake._exchange = QuotaExchange(intake._quotas, path, start, lambda: self.now)
        self._houses.append(house)
        intake.exchange_quotas()
        return house

    def kill(self, house: House) -> None:
        self._houses.remove(house)
        house.inbox.close()

    def pass_time(self, seconds: float) -> None:
        """Each core exchanges twice in this time: what one writes after another has read is read then."""
        for _ in range(2):
            self.now += seconds / 2
            for house in self._houses:
                house.now = self.now
                house.core.intake.exchange_quotas()


@pytest.fixture
def cores(tmp_path):
    made = Cores(tmp_path)
    yield made
    for house in list(made._houses):
        made.kill(house)


def ask(house: House, handle: int, prompt: int, terms: TenantTerms, **options: object) -> bool:
    """Whether a request is admitted; it stays in flight."""
    house.put(add_request(handle, prompt, max_tokens=1, tenant="a", terms=terms, **options))
    house.core._take_events()
    return handle not in {failure.handle for failure in house.failures()}


def test_tokens_are_those_of_all_cores(cores: Cores) -> None:
    one, other = cores.start("one"), cores.start("other")
    assert ask(one, 1, 50, SLOW)
    assert ask(other, 1, 20, SLOW), "the other one has not heard of it"
    cores.pass_time(2 * INTERVAL_S)
    assert not ask(one, 2, 10, SLOW) and not ask(other, 2, 10, SLOW), "70 tokens, less two seconds"
    cores.pass_time(30.0)
    assert ask(one, 3, 10, SLOW), "each token is charged once at each core"
    assert ask(other, 3, 10, SLOW)


def test_a_core_that_starts_again_has_its_clocks(cores: Cores) -> None:
    one = cores.start("one")
    assert ask(one, 1, 50, SLOW)
    cores.pass_time(2 * INTERVAL_S)
    cores.kill(one)
    cores.now += 10
    one = cores.start("one", start=2)
    assert not ask(one, 1, 30, SLOW), "38 of 60 tokens are owed"
    assert ask(one, 2, 20, SLOW)


def test_a_core_that_is_new_takes_over_the_clocks_of_others_once(cores: Cores) -> None:
    one = cores.start("one")
    assert ask(one, 1, 50, SLOW)
    cores.pass_time(2 * INTERVAL_S)
    other = cores.start("other")
    assert not ask(other, 1, 30, SLOW)
    cores.pass_time(30.0)
    assert ask(other, 2, 30, SLOW), "it was not charged again for what the first core has charged"


def test_requests_in_flight_are_those_of_living_cores(cores: Cores) -> None:
    one, other = cores.start("one"), cores.start("other")
    assert ask(one, 1, 5, FEW) and ask(one, 2, 5, FEW)
    cores.pass_time(2 * INTERVAL_S)
    assert not ask(other, 1, 5, FEW)
    cores.kill(one)
    cores.pass_time(2 * STALE_S)
    assert ask(other, 2, 5, FEW)


def test_what_is_in_the_folder_is_not_trusted(tmp_path: Path, cores: Cores) -> None:
    """Files that are no files of ours count for nothing."""
    (tmp_path / "x.quotas").write_text("[]")
    (tmp_path / "y.quotas").write_text('{"start": 1, "written_at": 1, "tenants": {"a": {"no": 1}}}')
    (tmp_path / "z.quotas").mkdir()
    one = cores.start("one")
    assert ask(one, 1, 50, SLOW)
    cores.pass_time(2 * INTERVAL_S)
    assert (tmp_path / "one.quotas").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_to_costs_one_warning(cores: Cores, caplog) -> None:
    house = cores.start("no/such/folder")
    assert ask(house, 1, 5, SLOW)
    cores.pass_time(2 * INTERVAL_S)
    cores.pass_time(2 * INTERVAL_S)
    assert len(caplog.records) == 1 and "quotas are not shared" in caplog.text


@pytest.mark.parametrize("listen", ["tcp://10.0.0.5:7101", "tcp://*:7101"])
def test_cores_that_listen_on_tcp_have_files_too(listen: str) -> None:
    assert quota_path(listen).name.endswith("-7101.quotas")
