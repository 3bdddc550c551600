"""Builds the documentation as a site, and checks every link and anchor of it (`make docs`).

    python -m scripts.site  # into build/site; exits 1 where a link leads nowhere

The pages are those of docs/, README.md, CONTRIBUTING.md, CHANGELOG.md, those of the examples, the .proto
files, and two that are made here: flags and error codes. They are copied to build/pages; links to other files
of the repository become the files' names. mkdocs (extra `docs`) makes HTML of them. The site needs nothing
from other hosts.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path

from scripts.site.staging import ROOT, stage

PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"


def slug(text: str, separator: str) -> str:
    """Returns the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def build(pages: Path, site: Path) -> None:
    """Builds the site. Raises SystemExit where mkdocs warns: a link or an anchor that leads nowhere."""
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config

    navigation = stage(pages)
    file = pages.with_name("mkdocs.yml")
    file.write_text("site_name: pagewire\n", encoding="utf-8")
    warn = {"not_found": "warn", "anchors": "warn", "absolute_links": "warn", "unrecognized_links": "warn"}
    config = load_config(
        str(file),
        docs_dir=str(pages),
        site_dir=str(site),
        nav=navigation,
        theme={"name": "mkdocs", "highlightjs": False, "color_mode": "auto", "nav_style": "dark"},
        plugins=["search"],
        markdown_extensions=[{"toc": {"slugify": slug, "permalink": True}}],
        use_directory_urls=False,
        validation={"links": warn, "nav": {"omitted_files": "warn", "not_found": "warn"}},
    )
    if warnings := _warnings_of(lambda: mkdocs_build(config)):
        raise SystemExit("\n".join(warnings))


def _warnings_of(work: Callable[[], None]) -> list[str]:
    """Returns what mkdocs warns of while it works."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logger = logging.getLogger("mkdocs")
    logger.addHandler(handler)
    try:
        work()
    finally:
        logger.removeHandler(handler)
    return found


def main() -> None:
    """The command."""
    build(PAGES, SITE)
    site = SITE.relative_to(ROOT)
    print(f"{site}: {sum(1 for _ in SITE.rglob('*.html'))} pages, all links lead somewhere")
    print(f"python -m http.server --bind 127.0.0.1 --directory {site} serves it")


if __name__ == "__main__":
    main()
