"""Who is to blame when the engine dies: the rule, as a function of what was noted.

Before each step it is noted who is in it (note_page.py), so that the next engine knows who was there when
this one died. Those are suspects. They run on trial, in groups, one group at a time (probation.py):

    nobody in the fatal step was on trial     everybody in it is a suspect, in groups of an eighth of them
    several of them were on trial             they are to blame, whoever ran beside them; groups of an eighth
    one of them was                           a strike against it
    ... and nobody else was in the step       one more; after STRIKES it is guilty

A suspect is acquitted when it has got past the tokens at which the engine died; see Probation. So what a
request needs for a verdict is to be there, alone, in death after death, always at the same tokens. To
kill the engine from outside at random moments does not do that: who dies beside it has got further, or the
next one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

STRIKES = 3
"""Deaths for which a request alone is to blame. One is chance, and the first may be with others beside it."""
_PARTS = 8
"""Groups that suspects are divided into. Fewer make more deaths until the culprit is alone, more make more
steps with few rows: 64 suspects are 8 groups, and after another death 8 who run alone."""
_MEMORY = 16
"""Deaths after which a suspect that has not come again is forgotten."""


class Span(NamedTuple):
    """Tokens of a sequence, first to end - 1, that may have been computed when the engine died."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """What is known of a request that was there when an engine died."""

    span: Span  # what all deaths that it alone is blamed for have in common; else of the last one
    group: int  # it may run with so many others that are to blame for the same death, itself included
    death: int  # number of that death
    strikes: int = 0

    @property
    def is_guilty(self) -> bool:
        """Whether it must not run again."""
        return self.strikes >= STRIKES


def key_of(tenant: str, request_id: str) -> int:
    """What a request is called in notes: the same whoever sends it, and how often. Never 0."""
    name = f"{len(tenant)} {tenant}{request_id}"
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little") or 1


def judge(present: Mapping[int, Span], suspects: Mapping[int, Suspect], death: int) -> dict[int, Suspect]:
    """The suspects after a death.

    present: who was in the steps that were under way, by key. suspects: those before; whoever is in both was
    on trial. death: its number, above all earlier ones.
    """
    on_trial = present.keys() & suspects.keys()
    known = {key: suspect for key, suspect in suspects.items() if suspect.death > death - _MEMORY}
    if len(on_trial) == 1:
        (key,) = on_trial
        known[key] = _strike(suspects[key], present[key], death, alone=len(present) == 1)
        return known
    blamed = on_trial or present.keys()
    group = max(1, len(blamed) // _PARTS)
    for key in blamed:
        known[key] = Suspect(present[key], group, death)
    return known


def release(suspect: Suspect) -> Suspect:
    """Somebody guilty, once he was told: should he come again, he is tried once more."""
    return replace(suspect, strikes=STRIKES - 1)


def _strike(suspect: Suspect, span: Span, death: int, *, alone: bool) -> Suspect:
    """It was on trial by itself. Who was acquitted before may have run beside it: that is no proof."""
    common = Span(max(suspect.span.first, span.first), min(suspect.span.end, span.end))
    if not suspect.strikes or common.first >= common.end:
        return Suspect(span, 1, death, 1)
    strikes = suspect.strikes + 1 if alone else suspect.strikes
    return Suspect(common, 1, death, strikes)
