"""The rule by itself: which requests are quarantined, after how many deaths."""

import math
from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.quarantine.blame import STRIKES, Span, Suspect, judge, key_of, release

HERE = Span(10, 12)


class Hunt:
    """Requests that are resubmitted after each death; some of them kill the engine whenever they run."""

    def __init__(self, count: int, *, killed: bool = False) -> None:
        """killed: by SIGKILL, as the kernel does when memory runs out."""
        self.killed = killed
        self.requests = list(range(1, count + 1))
        self.suspects: dict[int, Suspect] = {}
        self.quarantined: set[int] = set()
        self.deaths = 0

    def die(self, present: dict[int, Span]) -> None:
        """The engine dies with these in its step."""
        self.deaths += 1
        self.suspects = judge(present, self.suspects, self.deaths, killed=self.killed)
        for key in [key for key, suspect in self.suspects.items() if suspect.is_quarantined]:
            self.quarantined.add(key)
            self.requests.remove(key)
            del self.suspects[key]

    def live(self, kills: Callable[[int], bool]) -> bool:
        """One life, as Quarantine orders it: isolated runs, then all requests. False: none has killed it."""
        running: list[int] = []
        while isolated := {key: each for key, each in self.suspects.items() if not each.is_watched}:
            latest = max(suspect.death for suspect in isolated.values())
            group = [key for key, suspect in isolated.items() if suspect.death == latest]
            group = group[: self.suspects[group[0]].group]
            running += group
            if any(kills(key) for key in group):
                self.die(dict.fromkeys(running, HERE))
                return True
            for key in group:
                del self.suspects[key]
        if any(kills(key) for key in self.requests if key not in running):
            self.die(dict.fromkeys(self.requests, HERE))
            return True
        self.suspects.clear()
        return False


@settings(deadline=None)
@given(count=st.integers(1, 64), killed=st.booleans(), data=st.data())
def test_one_that_always_kills_is_found(count: int, killed: bool, data: st.DataObject) -> None:
    hunt, culprit = Hunt(count, killed=killed), data.draw(st.integers(1, count))
    while hunt.live(lambda key: key == culprit):
        assert hunt.deaths <= math.ceil(math.log2(64)) + 4
    assert hunt.quarantined == {culprit}
    assert hunt.deaths <= STRIKES + (1 + math.ceil(math.log2(count)) if killed else 2)


@settings(deadline=None)
@given(count=st.integers(2, 300), killed=st.booleans(), data=st.data())
def test_several_that_always_kill_are_found_one_after_another(
    count: int, killed: bool, data: st.DataObject
) -> None:
    culprits = data.draw(st.sets(st.integers(1, count), min_size=1, max_size=5))
    hunt = Hunt(count, killed=killed)
    while hunt.live(lambda key: key in culprits):
        each = math.ceil(math.log2(count)) + 1 if killed else 3
        assert hunt.deaths <= (STRIKES + each) * len(culprits)
    assert hunt.quarantined == culprits


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 64), seed=st.integers(0, 1 << 30))
def test_chance_makes_it_longer_but_quarantines_no_other(count: int, seed: int) -> None:
    """One request kills with probability one half each time it begins; it may get through."""
    random, hunt = Random(seed), Hunt(count)
    culprit = random.randint(1, count)
    while hunt.live(lambda key: key == culprit and random.random() < 0.5):
        assert hunt.deaths < 200
    assert hunt.quarantined <= {culprit}


def test_groups_are_an_eighth_then_one():
    spans = {key: HERE for key in range(64)}
    suspects = judge(spans, {}, 1)
    assert {suspect.group for suspect in suspects.values()} == {8}
    fatal = {key: HERE for key in range(30)}  # 16 to 29 were isolated; the others were cleared
    known = {key: suspect for key, suspect in suspects.items() if key >= 16}
    after = judge(fatal, known, 2)
    assert {key for key, suspect in after.items() if suspect.death == 2} == set(range(16, 30))
    assert after[16].group == 1 and after[40].group == 8
    assert not any(key in after for key in range(16))


def test_after_a_sigkill_all_are_watched_once():
    spans = {key: HERE for key in range(64)}
    suspects = judge(spans, {}, 1, killed=True)
    assert all(suspect.is_watched for suspect in suspects.values())
    assert {suspect.group for suspect in judge(spans, suspects, 2).values()} == {8}


def test_what_ran_beside_those_that_were_watched_is_watched():
    """It may have killed the second process. Beside those that were isolated nothing is."""
    watched = judge({1: HERE, 2: HERE}, {}, 1, killed=True)
    after = judge({1: HERE, 2: HERE, 3: HERE}, watched, 2, killed=True)
    assert [after[key].group for key in (1, 2, 3)] == [1, 1, 0]
    assert judge({1: HERE, 2: HERE, 9: HERE}, after, 3, killed=True).keys() == {1, 2, 3}
    failed = judge({1: HERE, 2: HERE, 3: HERE}, watched, 2)
    assert [failed[key].group for key in (1, 2, 3)] == [1, 1, 1], "it was no SIGKILL: all are to blame"


def test_sigkills_in_a_row_halve_the_group_that_was_running():
    spans = {key: HERE for key in range(64)}
    suspects = judge(spans, judge(spans, {}, 1, killed=True), 2, killed=True)
    assert {suspect.group for suspect in suspects.values()} == {32}
    after = judge({key: HERE for key in range(31)}, suspects, 3, killed=True)
    assert (
        sorted((suspect.death, suspect.group) for suspect in after.values())
        == [(2, 32)] * 33 + [(3, 16)] * 31
    )


def one(span: Span, strikes: int) -> dict[int, Suspect]:
    return {1: Suspect(span, 1, 1, strikes)}


def test_it_takes_a_death_alone():
    """A request that ran beside it may have done it, too, though it was cleared of the last death."""
    beside = judge({1: HERE, 2: HERE}, one(HERE, 2), 2)
    assert beside[1].strikes == 2 and beside[1].death == 2 and 2 not in beside
    assert judge({1: HERE, 2: HERE}, one(HERE, 0), 2)[1].strikes == 1
    assert judge({1: HERE}, one(HERE, 2), 2)[1].is_quarantined


def test_it_takes_the_same_tokens():
    """A request that gets further proves that its earlier deaths were chance."""
    assert judge({1: Span(12, 14)}, one(HERE, 2), 2)[1] == Suspect(Span(12, 14), 1, 2, 1)
    assert judge({1: Span(11, 14)}, one(HERE, 2), 2)[1] == Suspect(Span(11, 12), 1, 2, 3)


def test_a_suspect_that_waits_stays_one_for_a_while():
    suspects = judge({1: HERE, 2: HERE}, {}, 1)
    for death in range(2, 17):
        suspects = judge({9: HERE}, suspects, death)
        assert 1 in suspects and 2 in suspects
    assert judge({9: HERE}, suspects, 17).keys() == {9}


def test_a_quarantined_request_may_run_once_more_after_its_refusal():
    suspect = release(Suspect(HERE, 1, 5, STRIKES))
    assert not suspect.is_quarantined and judge({1: HERE}, {1: suspect}, 6)[1].is_quarantined


def test_names():
    assert key_of("a", "b") == key_of("a", "b") != key_of("ab", "")
    assert key_of("1 a", "b") != key_of("", "1 ab")
    assert key_of("\ud800", "") > 0
