"""Drafts are planned where the measured times and the accepted tokens say that they pay."""

from engine_core.request import Sequence
from engine_core.scheduler.planning.drafts import FIRST_YIELD, DraftGain
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from tests.engine_core.world import World


def sequence() -> Sequence:
    return World().add(1, 5).sequences[0]


class Clock:
    """Tells a DraftGain of one step after another."""

    def __init__(self, gain: DraftGain) -> None:
        self.gain, self.now_ns = gain, 1_000_000

    def step(
        self, rows: int, drafts: int, us: int, gap_us: int = 0, prompt: int = 0, was_awaited: bool = False
    ) -> None:
        """A step of `us` that begins `gap_us` after the last one. drafts: of each row. prompt: tokens.
        was_awaited: see DraftGain."""
        numbers = list(range(rows))
        plan = Plan(rows=numbers, sample_rows=numbers, counts=[1 + drafts] * rows)
        if drafts:
            plan.sample_counts = [1 + drafts] * rows
        if prompt:
            plan.counts[-1] += prompt
        counts = [drafts] * rows if drafts else ()
        began = self.now_ns + 1000 * gap_us
        self.now_ns = began + 1000 * us
        result = Result(1, [], us, started_ns=began, draft_counts=counts)
        self.gain.step_done(plan, result, was_awaited)


def measured(plain_us: int, drafting_us: int, gap_us: int = 0) -> DraftGain:
    gain = DraftGain()
    clock = Clock(gain)
    for _ in range(20):
        clock.step(1, 0, plain_us)
        clock.step(1, 3, drafting_us, gap_us)
    return gain


def test_it_pays_until_it_is_measured() -> None:
    gain, one = DraftGain(), sequence()
    one.draft_yield = 0.0
    assert gain.pays(1, [one])
    Clock(gain).step(1, 0, 100)
    assert gain.pays(1, [one])


def test_slow_first_steps_do_not_decide() -> None:
    """What a first draft finds unprepared, later ones find prepared."""
    gain, one = DraftGain(), sequence()
    clock = Clock(gain)
    clock.step(1, 0, 100)
    for drafting_us in (9000, 900, 150, 110):
        clock.step(1, 0, 100)
        assert gain.pays(1, [one])
        clock.step(1, 3, drafting_us)
    assert gain.pays(1, [one])
    one.draft_yield = 0.0
    assert not gain.pays(1, [one]), "by now it is measured"


def test_a_sequence_begins_with_what_others_have_gained() -> None:
    gain = measured(100, 290)
    assert not gain.pays(1, [sequence()])
    other = sequence()
    for _ in range(40):
        gain.judge(other, 4, 4)
    assert gain.pays(1, [sequence()])
    for _ in range(40):
        gain.judge(other, 4, 0)
    assert not gain.pays(1, [sequence()])


def test_steps_in_which_a_draft_model_computed_prompts_do_not_count() -> None:
    gain = measured(100, 110)
    plan = Plan(rows=[0], sample_rows=[0], counts=[4], sample_counts=[4])
    for step in range(50):
        ended = Result(1, [], 1000, started_ns=10**9 + step * 10**6, draft_counts=[3], draft_prefill=True)
        gain.step_done(plan, ended, False)
    assert gain.pays(1, [sequence()])


def test_the_tokens_must_be_worth_the_time() -> None:
    one = sequence()
    for drafting_us, gap_us, least in ((110, 0, 0.2), (150, 0, 0.6), (110, 60, 0.8)):
        gain = measured(100, drafting_us, gap_us)
        one.draft_yield = least
        assert gain.pays(1, [one])
        one.draft_yield = least - 0.15
        assert not gain.pays(1, [one]), "the time until the next step counts too"


def test_a_step_that_waited_for_a_draft_says_nothing_of_steps_without_drafts() -> None:
    gain, one = measured(100, 150), sequence()
    one.draft_yield = 0.4
    clock = Clock(gain)
    for was_awaited, pays in ((True, False), (False, True)):
        for _ in range(20):
            clock.step(1, 0, 100, gap_us=60, was_awaited=was_awaited)
        assert gain.pays(1, [one]) is pays


def test_rows_that_are_not_drafted_for_wait_as_well() -> None:
    gain, one = DraftGain(), sequence()
    clock = Clock(gain)
    for _ in range(10):
        clock.step(4, 0, 100)
        clock.step(4, 3, 130)
    one.draft_yield = 1.0
    assert not gain.pays(4, [one]) and gain.pays(4, [one, one])
    assert gain.pays(1, [one]), "another number of rows is not measured"


def test_prompts_and_pauses_are_not_compared() -> None:
    one, gain = sequence(), DraftGain()
    clock = Clock(gain)
    for _ in range(10):
        clock.step(1, 0, 100)
        clock.step(1, 3, 110)
        clock.step(1, 3, 900, prompt=40)
        gain.idle()
        clock.step(1, 3, 110, gap_us=10_000)
        clock.step(1, 0, 100)
    one.draft_yield = 0.2
    assert gain.pays(1, [one])


def test_refused_drafts_are_tried_again_after_some_time() -> None:
    gain, one = measured(100, 120), sequence()
    tries = [0]
    for step in range(1000):
        drafted = 3 if gain.pays(1, [one]) else 0
        gain.judge(one, drafted, 0)
        tries += [step] if drafted else []
    assert 5 < len(tries) < 80 and tries[-1] > 900
    for _ in range(20):
        gain.judge(one, 3, 3)
    assert one.draft_yield > FIRST_YIELD
    gain.judge(one, 0, -1)
    assert one.draft_yield > FIRST_YIELD, "a step without a draft takes nothing away"
