"""`pagewire docs`: the documentation's site as an installation carries it, one archive (`make docs`)."""

import mimetypes
import signal
import zipfile
from pathlib import Path
from urllib.parse import unquote

from pagewire.command_config import DocsConfig
from pagewire.errors import StartupError
from pagewire.host.addresses import reserve_port
from pagewire.telemetry.http import HttpThread
from pagewire.telemetry.pages import Page, text_page

ARCHIVE = Path(__file__).parents[1] / "site.zip"
_PAGES = (ARCHIVE.with_name("docs"), ARCHIVE.parents[1] / "docs")
"""Folders with the pages as Markdown: of an installed wheel, and of a source tree."""
LOOPBACK = "127.0.0.1"
_MISSING = text_page(404, "not found")


class DocsSite:
    """The files of an archive as pages. The archive is open until close()."""

    def __init__(self, archive: Path) -> None:
        """Raises StartupError where there is no archive, or something else in its place."""
        what = "cannot serve the documentation"
        try:
            self._archive = zipfile.ZipFile(archive)
        except FileNotFoundError:
            why = "this installation was made of a source tree without the site"
            raise StartupError(
                what, why, "in pagewire's source tree: make docs, then install again"
            ) from None
        except (OSError, zipfile.BadZipFile) as error:
            raise StartupError(what, f"{archive}: {error}", "install pagewire again") from None
        self._names = frozenset(self._archive.namelist())

    def close(self) -> None:
        self._archive.close()

    async def answer(self, path: str, accept: str) -> Page:
        """Returns the page of a path; that of an unknown one has the status 404. accept: not used."""
        name = unquote(path).removeprefix("/")
        if not name or name.endswith("/"):
            name += "index.html"
        if name in self._names:
            return Page(200, _content_type(name), self._archive.read(name))
        return _MISSING


def serve(archive: Path, port: int) -> None:
    """Serves an archive on the loopback address until Ctrl-C, and prints its URL. port 0: a free one. Raises
    StartupError."""
    site = DocsSite(archive)
    try:
        listener = reserve_port(LOOPBACK, port)
        listener.listen()
        thread = HttpThread(site.answer, listener)
        thread.start()
        try:
            print(f"http://{LOOPBACK}:{listener.getsockname()[1]}/ (Ctrl-C to stop)", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            return
        finally:
            thread.close()
    finally:
        site.close()


def _content_type(name: str) -> str:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def run(config: DocsConfig) -> int:
    """Serves the documentation until Ctrl-C; without a site, prints where its pages are. Returns 0. Raises
    StartupError."""
    pages = next((folder for folder in _PAGES if folder.is_dir()), None)
    if ARCHIVE.exists() or pages is None:
        serve(ARCHIVE, config.port)
    else:
        print(f"{pages / 'tutorial.md'} and the pages next to it; in a source tree, make docs builds a site")
    return 0


COMMANDS = {"docs": (DocsConfig, run)}
