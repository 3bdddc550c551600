"""The two parts of the suite: what `make test` runs, and what only `make test-all` and CI do.

tests/thorough.toml lists the second part; every other test is in the first one, so none is in neither.
"""

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("thorough.toml")


@dataclass(frozen=True)
class Entry:
    """Tests of the second part.

    tests: the beginning of their names in pytest: a folder, a file or a test. cases: so many cases of
    each test stay in the first part, evenly spread. keep: cases that stay as well, by the end of their name.
    reason: what the others have more than those.
    """

    tests: str
    reason: str
    cases: int = 0
    keep: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """True for a test with this beginning."""
        return name.startswith(self.tests) and name[len(self.tests) : len(self.tests) + 1] in (
            "",
            "/",
            ":",
            "[",
        )


@cache
def entries() -> tuple[Entry, ...]:
    """The list, the longest beginning first."""
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))["thorough"]
    read = [Entry(**{**item, "keep": tuple(item.get("keep", ()))}) for item in table]
    return tuple(sorted(read, key=lambda entry: len(entry.tests), reverse=True))


def thorough(names: Sequence[str], entries: Sequence[Entry]) -> set[str]:
    """Which of these tests are in the second part. names: all cases of each test, as pytest has them."""
    by_test: dict[tuple[Entry, str], list[str]] = defaultdict(list)
    for name in names:
        entry = next((entry for entry in entries if entry.covers(name)), None)
        if entry is not None:
            by_test[entry, name.partition("[")[0]].append(name)
    left = set[str]()
    for (entry, _), cases in by_test.items():
        stays = {cases[number * len(cases) // entry.cases] for number in range(entry.cases)}
        left |= {name for name in cases if name not in stays and not name.endswith(entry.keep or "\n")}
    return left
