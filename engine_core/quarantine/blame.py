"""Which requests are to blame when the engine dies: a rule over the crash journal.

Before each step the journal records which requests are in it (crash_journal.py), so that the next engine
knows which requests were running when this one died. These are suspects. They run in isolation, one group at
a time (quarantine.py):

    no request in the fatal step was a suspect  all of them are, in groups of an eighth
    several of them were isolated               these are to blame, not others beside them; in eighths
    one of them was isolated                    its first strike
    ... and nothing else was in the step        a further strike; after STRIKES it is quarantined

A process that is killed by SIGKILL is mostly killed from outside. The requests of its last steps are watched:
they run at once, among all others. Those that have got no further when the next process is killed, too, are
isolated, in halves.

A suspect is cleared when it has got past the tokens at which the engine died; see Quarantine. So a request is
quarantined only if it runs alone in death after death, always at the same tokens. Killing the engine from
outside at random moments does not do that: a request that is running then has got further, or the next one
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

STRIKES = 3
"""Deaths for which a request alone is to blame. One may be chance; beside the first one others may run."""
_PARTS = 8
"""Groups that suspects are divided into. With fewer groups it takes more deaths until the culprit runs alone,
with more groups more steps have few rows: 64 suspects are 8 groups, and after another death 8 single runs."""
_MEMORY = 16
"""Deaths after which a suspect that was not resubmitted is forgotten."""


class Span(NamedTuple):
    """Tokens of a sequence, first to end - 1, that may have been computed when the engine died."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """What is known of a request that was running when an engine died."""

    span: Span  # common to all deaths that it alone is blamed for; else of the last death
    group: int  # size of its isolation group: suspects of the same death that run together; 0: it is watched
    death: int  # number of that death
    strikes: int = 0

    @property
    def is_quarantined(self) -> bool:
        """Whether it must not run again."""
        return self.strikes >= STRIKES

    @property
    def is_watched(self) -> bool:
        """Whether it runs among all others."""
        return not self.group


def key_of(tenant: str, request_id: str) -> int:
    """Returns the name of a request in the journal, which is the same after a resubmission. Never 0."""
    name = f"{len(tenant)} {tenant}{request_id}"
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little") or 1


def judge(
    present: Mapping[int, Span], suspects: Mapping[int, Suspect], death: int, *, killed: bool = False
) -> dict[int, Suspect]:
    """Returns the suspects after a death.

    present: the requests in the steps that were in flight, by key. suspects: those before the death; a
    request that is in both was isolated or watched. death: its number, above all earlier ones. killed: the
    process was killed by SIGKILL.
    """
    # Where it was not, those that are watched are no more to blame than what ran beside them.
    isolated = {key for key in present.keys() & suspects.keys() if killed or not suspects[key].is_watched}
    known = {key: suspect for key, suspect in suspects.items() if suspect.death > death - _MEMORY}
    if killed and all(suspects[key].is_watched for key in isolated):
        known |= {key: Suspect(present[key], 0, death) for key in present.keys() - isolated}
    if len(isolated) == 1:
        (key,) = isolated
        known[key] = _strike(suspects[key], present[key], death, alone=len(present) == 1)
        return known
    blamed = isolated if killed else isolated or present.keys()
    for key in blamed:
        known[key] = Suspect(present[key], _group_size(len(blamed), killed=killed), death)
    return known


def _group_size(count: int, *, killed: bool) -> int:
    """Returns how many of the requests that are to blame run together.

    Kills from outside that follow one another meet an isolated group each time, and the groups run one after
    another before anything else. With eighths it took seconds until the last of 64 streams had its turn, and
    where the next kill came first it had none. Halves add one group for each kill."""
    return -(-count // 2) if killed else max(1, count // _PARTS)


def release(suspect: Suspect) -> Suspect:
    """Returns a quarantined suspect whose client was told: submitted again, it gets one more run."""
    return replace(suspect, strikes=STRIKES - 1)


def _strike(suspect: Suspect, span: Span, death: int, *, alone: bool) -> Suspect:
    """Returns a suspect that was isolated alone. alone: no cleared requests ran beside it, either."""
    common = Span(max(suspect.span.first, span.first), min(suspect.span.end, span.end))
    if not suspect.strikes or common.first >= common.end:
        return Suspect(span, 1, death, 1)
    strikes = suspect.strikes + 1 if alone else suspect.strikes
    return Suspect(common, 1, death, strikes)
