"""scripts/release.sh refuses a tree that is not ready, before it builds anything."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "release.sh"
FILES = {
    "pyproject.toml": 'version = "2026.12.0"\n',
    "packages/pagewire-client/pyproject.toml": 'version = "2026.12.0"\n',
    "pagewire/__init__.py": '__version__ = "2026.12.0"\n',
    "compose.yaml": "image: pagewire:2026.12.0\n",
    "constraints.txt": "certifi==2026.10.5\n",
    "CHANGELOG.md": "# Changelog\n\n## 2026.12.0\n\n- New.\n\n## 2026.11.0\n\n- Old.\n",
    "Makefile": "docs:\n\t@echo ready to build >&2; exit 1\n",
}
NEW = "## 2026.12.0\n\n- New.\n"


def release(folder: Path, **changed: str) -> str:
    """Runs it in a repository of FILES, some of them replaced; returns what it prints."""
    for name, text in {**FILES, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "scripts").mkdir()
    script = shutil.copy(SCRIPT, folder / "scripts")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    done = subprocess.run([script, "2026.12.0"], capture_output=True, text=True)
    assert done.returncode
    return done.stderr


def test_a_tree_that_is_ready_is_built(tmp_path: Path) -> None:
    assert release(tmp_path).startswith("ready to build")
    assert (tmp_path / "build" / "notes.md").read_text() == "\n- New.\n\n"


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        (
            "packages/pagewire-client/pyproject.toml",
            'version = "2026.11.0"\n',
            "pagewire-client/pyproject.toml has",
        ),
        ("pagewire/__init__.py", '__version__ = "2026.11.0"\n', "__init__.py has another version"),
        (
            "compose.yaml",
            "image: pagewire:2026.11.0\n",
            "another version: compose.yaml:1:image: pagewire:2026.11.0",
        ),
        ("CHANGELOG.md", f"## Unreleased\n\n- Newer.\n\n{NEW}", "below '## Unreleased'"),
        ("CHANGELOG.md", "## 2026.12.0\n\n## 2026.11.0\n\n- Old.\n", "no changes below '## 2026.12.0'"),
        ("CHANGELOG.md", NEW.replace(".12.0", ".12.01"), "no changes below '## 2026.12.0'"),
    ],
)
def test_what_is_not_ready_is_named(tmp_path: Path, file: str, text: str, error: str) -> None:
    stderr = release(tmp_path, **{file: text})
    assert stderr.startswith("release: ") and error in stderr


def test_versions_of_tests_are_no_stale_ones(tmp_path: Path) -> None:
    text = 'OLD = "2031.1.0"\n'
    assert release(tmp_path, **{"tests/a.py": text, "packages/b/tests/b.py": text}).startswith("ready")
