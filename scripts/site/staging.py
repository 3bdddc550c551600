"""Copies the pages of the documentation to a folder, with their links between them."""

import functools
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from scripts.site.reference import errors_page, flags_page

ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("README.md", "docs/tutorial.md", "docs/coming-from.md"),
    "How to": (
        "docs/operations.md",
        "docs/kubernetes.md",
        "docs/distributed.md",
        "docs/security.md",
        "docs/checkpoints.md",
        "docs/benchmarking.md",
        "docs/console.md",
        "docs/openai.md",
        "docs/adapters.md",
        "docs/embeddings.md",
        "docs/scoring.md",
        "docs/prompt-embeddings.md",
        "docs/images.md",
        "docs/audio.md",
        "docs/gateways.md",
        "docs/tei.md",
        "docs/structured-output.md",
        "docs/tools.md",
        "docs/reasoning.md",
        "docs/adding-a-model.md",
        "examples/*/README.md",
    ),
    "Reference": (
        "docs/command-line.md",
        "docs/limits.md",
        "docs/metrics.md",
        "docs/models.md",
        "docs/sampling.md",
        "docs/streams.md",
        "docs/promises.md",
        "docs/reports.md",
        "protos/pagewire/v1/*.proto",
        "CHANGELOG.md",
    ),
    "Explanation": (
        "docs/reading.md",
        "docs/structure.md",
        "docs/worker.md",
        "docs/scheduling.md",
        "docs/speculation.md",
        "docs/gpu.md",
        "docs/transformers-backend.md",
        "docs/simulated.md",
        "docs/simulation.md",
        "docs/testing.md",
        "docs/performance.md",
        "docs/lab-book.md",
        "docs/contributing.md",
        "docs/dependencies.md",
        "CONTRIBUTING.md",
        "docs/decisions/*.md",
    ),
}
"""The parts of the site, as https://diataxis.fr has them, and their pages in order."""
_IMAGES = ("docs/**/*.png", "docs/**/*.svg")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_ROW, _CODE = re.compile(r"^\|.*\|$", re.MULTILINE), re.compile(r"`[^`\n]+`")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def sources() -> dict[str, list[Path]]:
    """Returns the files of each section. A page of docs/ that no section names comes last."""
    found = {
        section: [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        for section, patterns in SECTIONS.items()
    }
    named = {path for paths in found.values() for path in paths}
    found["Explanation"] += [path for path in sorted(ROOT.glob("docs/**/*.md")) if path not in named]
    return found


def page_name(source: Path) -> str:
    """Returns the path of a source's page, or of an image, in the site."""
    name = source.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if source.suffix == ".proto":
        return f"protos/{source.stem}.md"
    if name.startswith("examples/"):
        return f"examples/{source.parent.name}.md"
    return name.removeprefix("docs/")


def staged(source: Path, pages: dict[Path, str]) -> str:
    """Returns the Markdown of a page. pages: all sources with their pages."""
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".proto":
        return f"# {source.name}\n\n```proto\n{text}```\n"
    return linked(without_escapes(text), source, pages)


def without_escapes(text: str) -> str:
    r"""Returns a page's text with | for \| in code of tables: GitHub needs the backslash, mkdocs shows
    it."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text)


def linked(text: str, source: Path, pages: dict[Path, str]) -> str:
    """Returns a page's text with its links between pages of the site. Raises SystemExit for a link to a file
    that does not exist."""
    parts = _FENCE.split(text)
    replace = functools.partial(_link, source, pages)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def _link(source: Path, pages: dict[Path, str], match: re.Match[str]) -> str:
    text, target, anchor = match[1], match[2], match[3] or ""
    if target.startswith(("http://", "https://")) or not target:
        return match[0]
    path = (source.parent / target).resolve()
    if path.is_dir():
        path = next(
            (each for each in (path / "README.md", *sorted(path.glob("*.proto"))) if each in pages), path
        )
    images = (each for pattern in _IMAGES for each in ROOT.glob(pattern))
    if path in pages or path in images:
        here = posixpath.dirname(pages[source]) or "."
        return f"[{text}]({posixpath.relpath(page_name(path), here)}{anchor})"
    if not path.exists():
        raise SystemExit(f"{source.relative_to(ROOT)}: {target} does not exist")
    name = path.relative_to(ROOT).as_posix()
    return text if name.rstrip("/") in text else f"{text} (`{name}`)"


def stage(folder: Path) -> list[dict[str, Any]]:
    """Writes all pages into a folder and returns the navigation, as mkdocs has it."""
    shutil.rmtree(folder, ignore_errors=True)
    found = sources()
    pages = {path: page_name(path) for paths in found.values() for path in paths}
    for source, name in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(staged(source, pages), encoding="utf-8")
    for image in (path for pattern in _IMAGES for path in ROOT.glob(pattern)):
        (folder / page_name(image)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / page_name(image))
    navigation = {section: [pages[path] for path in paths] for section, paths in found.items()}
    for name, text in {"flags.md": flags_page(), "errors.md": errors_page()}.items():
        (folder / name).write_text(without_escapes(text), encoding="utf-8")
        navigation["Reference"].insert(0, name)
    return [{section: names} for section, names in navigation.items()]
