"""A bug, made on purpose: a few lines of a source file as a developer might get them wrong."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """What is wrong, where, and which tests must notice.

    name: in words; of the bug, not of the test. file: from the root of the tree. old: stands there exactly
    once, and is replaced by new. tests: pytest's names of tests, files or folders, of which one has to fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self, root: Path) -> str:
        """The file with the bug. Raises ValueError when the place is not there any more, or not alone."""
        source = (root / self.file).read_text(encoding="utf-8")
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: what it replaces stands {found} times in {self.file}")
        return source.replace(self.old, self.new)
