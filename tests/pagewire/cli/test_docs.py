"""`pagewire docs`: the archive of an installation as a site on the loopback address."""

import urllib.request
import zipfile
from pathlib import Path

import pytest

from pagewire import cli
from pagewire.cli import docs
from pagewire.errors import StartupError

FILES = {
    "index.html": b"<h1>home</h1>",
    "decisions/index.html": b"decisions",
    "css/a.css": b"p {}",
    "a b.png": b"\x89PNG",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "site.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in FILES.items():
            packed.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/decisions/", "decisions/index.html", "text/html; charset=utf-8"),
        ("/css/a.css", "css/a.css", "text/css; charset=utf-8"),
        ("/a%20b.png", "a b.png", "image/png"),
    ],
)
async def test_a_file_of_the_archive_is_a_page(archive: Path, path: str, name: str, kind: str):
    page = await docs.DocsSite(archive).answer(path, "*/*")
    assert (page.status, page.content_type, page.body) == (200, kind, FILES[name])


@pytest.mark.parametrize("path", ["/none.html", "/../site.zip", "/%2e%2e/site.zip", "//etc/passwd", "/css"])
async def test_nothing_else_is(archive: Path, path: str):
    assert (await docs.DocsSite(archive).answer(path, "*/*")).status == 404


def test_it_listens_on_the_loopback_address_and_prints_where(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    read = []

    def look() -> None:
        url = capsys.readouterr().out.split()[0]
        assert url.startswith("http://127.0.0.1:")
        read.append(urllib.request.urlopen(url, timeout=30).read())
        raise KeyboardInterrupt

    monkeypatch.setattr(docs.signal, "pause", look)
    monkeypatch.setattr(docs, "ARCHIVE", archive)
    assert cli.run(["docs"]) == 0
    assert read == [FILES["index.html"]]


def test_an_installation_without_the_site_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(docs, "ARCHIVE", tmp_path / "site.zip")
    monkeypatch.setattr(docs, "_PAGES", (tmp_path / "docs",))
    with pytest.raises(StartupError, match="without the site") as missing:
        cli.run(["docs"])
    assert "make docs" in missing.value.todo
    (tmp_path / "site.zip").write_text("no archive")
    with pytest.raises(StartupError, match="cannot serve the documentation: .*site.zip: File is not a zip"):
        cli.run(["docs"])


def test_a_wheel_without_the_site_has_the_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(docs, "ARCHIVE", tmp_path / "site.zip")
    assert cli.run(["docs"]) == 0
    assert (
        Path(capsys.readouterr().out.split()[0])
        .read_text(encoding="utf-8")
        .startswith("# The first half hour")
    )


def test_a_port_in_use_is_named(archive: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(docs, "ARCHIVE", archive)
    with docs.reserve_port(docs.LOOPBACK, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            StartupError, match=f"cannot listen on 127.0.0.1:{port}: the port is already in use"
        ):
            cli.run(["docs", f"--port={port}"])
