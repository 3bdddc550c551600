"""The supervisor's pages: what its children say, put together."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import Metric, Reading
from pagewire.telemetry.http import HttpThread, listen_unix
from pagewire.telemetry.pages import MergedPages, Pages, get, merge

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
THINGS = Metric("things", "gauge", "Things.")


def pages_of(process: str, serves: bool = True) -> Pages:
    board = Board(process)
    board.add_readings(None, [Reading(THINGS, lambda _: 1.0)])
    return Pages(board, lambda answer: answer(serves))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts a child that serves its pages in the folder."""
    threads: list[HttpThread] = []

    def start(process: str, serves: bool = True) -> None:
        listener = listen_unix(str(tmp_path / f"{process}.http"))
        threads.append(HttpThread(pages_of(process, serves).answer, listener))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.close()


@pytest.mark.parametrize(
    ("accept", "parse"),
    [("", parse_text), ("application/openmetrics-text; version=1.0.0", parse_openmetrics)],
)
async def test_each_family_is_there_once(tmp_path: Path, start: Callable[..., None], accept: str, parse):
    start("frontend-1")
    start("engine-core")
    listen_unix(str(tmp_path / "gone.http")).close()  # it was killed, and left this behind
    tree = MergedPages(pages_of("supervisor").answer, tmp_path)
    page = await tree.answer("/metrics", accept)
    families = {family.name: family.samples for family in parse(page.body.decode())}
    assert page.body.count(b"# HELP things ") == 1
    names = [sample.labels["process"] for sample in families["things"]]
    assert names == ["supervisor", "engine-core", "frontend-1"]
    assert page.body.endswith(b"# EOF\n") == bool(accept)


async def test_ready_when_a_frontend_is(tmp_path: Path, start: Callable[..., None]):
    tree = MergedPages(pages_of("supervisor").answer, tmp_path)
    assert (await tree.answer("/readyz", "")).status == 503
    start("engine-core")
    start("frontend-1", serves=False)
    assert (await tree.answer("/readyz", "")).status == 503
    start("frontend-2")
    assert (await tree.answer("/readyz", "")).status == 200


async def test_ready_when_an_engine_core_is_where_there_are_no_frontends(
    tmp_path: Path, start: Callable[..., None]
):
    tree = MergedPages(pages_of("supervisor").answer, tmp_path, "engine")
    assert (await tree.answer("/readyz", "")).status == 503
    start("engine-core")
    assert (await tree.answer("/readyz", "")).status == 200


async def test_the_rest_is_the_supervisors_own(tmp_path: Path):
    tree = MergedPages(pages_of("supervisor").answer, tmp_path)
    assert (await tree.answer("/healthz", "")).status == 200
    assert (await tree.answer("/x", "")).status == 404


async def test_no_child_is_there(tmp_path: Path):
    assert await get(tmp_path / "x.http", "/metrics", "") is None


def test_samples_of_one_family_stand_together():
    one = b"# HELP a A.|# TYPE a gauge|a 1|# HELP b B.|# TYPE b gauge|b 1|"
    two = b"# HELP b B.|# TYPE b gauge|b 2|# HELP c C.|# TYPE c gauge|c 2|# HELP a A.|# TYPE a gauge|a 2|"
    assert merge([text.replace(b"|", b"\n") for text in (one, two)]).replace(b"\n", b"|") == (
        b"# HELP a A.|# TYPE a gauge|a 1|a 2|"
        b"# HELP b B.|# TYPE b gauge|b 1|b 2|"
        b"# HELP c C.|# TYPE c gauge|c 2|"
    )
