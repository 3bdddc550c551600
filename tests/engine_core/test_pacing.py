"""The next step is planned late, but never so late that the device waits. In simulated time."""

import pytest

from engine_core.io.inbox import Inbox
from engine_core.io.process_control import Stopped
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from tests.engine_core.fakes import FakeWorker, add_request, expected_output
from tests.engine_core.house import House

STEP_S, PLANNING_S = 0.010, 0.001
MINUTE_S = 60.0


class DeviceInTime(FakeWorker):
    """Each step takes a given time on the device, and each plan to be made and sent."""

    def __init__(self, house: "HouseInTime") -> None:
        super().__init__(64, 4)
        self._house = house
        self.spans: list[tuple[float, float]] = []
        self.step_s, self.planning_s = STEP_S, PLANNING_S
        self.own_gap_s = 0.0
        self.num_collected = 0
        self.waits: list[float] = []

    def submit(self, plan: Plan) -> None:
        super().submit(plan)
        self._house.pass_time(self.planning_s)
        begins = max(self._house.now, self.spans[-1][1] + self.own_gap_s if self.spans else 0.0)
        self.spans.append((begins, begins + self.step_s))

    def collect(self) -> Result:
        begin, end = self.spans[self.num_collected]
        self._house.pass_time(end - self._house.now)
        self.num_collected += 1
        result = super().collect()
        return Result(
            result.step,
            result.token_ids,
            duration_us=round(1e6 * (end - begin)),
            started_ns=round(1e9 * begin),
        )

    def await_result(self, seconds: float) -> None:
        self.waits.append(seconds)
        left = self.spans[self.num_collected][1] - self._house.now
        self._house.pass_time(min(seconds, left))

    def wait_for(self, inbox: Inbox) -> None:
        raise Stopped

    def gaps(self) -> list[float]:
        """Between one step and the next."""
        ends = [end for _, end in self.spans]
        return [round(begin - end, 9) for (begin, _), end in zip(self.spans[1:], ends, strict=False)]


class HouseInTime(House):
    """A house in which time passes while plans are made and steps run, and requests arrive."""

    def __init__(self, *, ahead: bool = True) -> None:
        super().__init__(ahead=ahead)
        self.arrivals: dict[int, float] = {}  # handle -> when
        self.now = MINUTE_S
        self.device = DeviceInTime(self)
        self.core._worker = self.device

    def pass_time(self, seconds: float) -> None:
        self.now += max(0.0, seconds)
        for handle in [handle for handle, at in self.arrivals.items() if at <= self.now]:
            del self.arrivals[handle]
            self.put(add_request(handle, max_tokens=20))

    def run_out(self) -> None:
        with pytest.raises(Stopped):
            self.core.run()

    def steps_with_arrivals(self) -> list[int]:
        return [plan.step for plan in self.device.plans if plan.new_rows]


def test_ahead_the_device_is_never_idle_while_there_is_work() -> None:
    house = HouseInTime()
    for handle in (1, 2, 3):
        house.put(add_request(handle, max_tokens=20 + handle))
    house.arrivals = {4: MINUTE_S + 0.05, 5: MINUTE_S + 0.11}
    house.run_out()
    assert len(house.device.spans) > 20 and not any(house.device.gaps())
    ledger = house.outputs_of(b"a")
    assert len(ledger.ends) == 5
    assert ledger.tokens[2, 0] == expected_output(add_request(2, max_tokens=22), 0)[0]


def test_in_step_it_waits_for_each_plan() -> None:
    house = HouseInTime(ahead=False)
    house.put(add_request(1, max_tokens=5))
    house.run_out()
    assert house.device.gaps() == [PLANNING_S] * 4


@pytest.mark.parametrize(
    ("ahead", "share_of_step", "step"),
    [
        pytest.param(False, 0.5, 7, id="in step: the next one"),
        pytest.param(True, 0.4, 7, id="ahead: the next one too"),
        pytest.param(True, 0.9, 8, id="ahead: after the next plan was made"),
    ],
)
def test_a_request_that_arrives_during_a_step_is_in_the_next_one(
    ahead: bool, share_of_step: float, step: int
) -> None:
    house = HouseInTime(ahead=ahead)
    house.put(add_request(1, max_tokens=20))
    begin = MINUTE_S + PLANNING_S + 5 * (STEP_S + (0.0 if ahead else PLANNING_S))
    house.arrivals = {2: begin + share_of_step * STEP_S}
    house.run_out()
    assert house.device.spans[5][0] == pytest.approx(begin)
    assert house.steps_with_arrivals() == [1, step]


def test_a_busy_machine_makes_plans_early() -> None:
    """Each time the device has waited for a plan, patience halves; it recovers slowly."""
    house = HouseInTime()
    house.put(add_request(1, prompt=1, max_tokens=60))
    house.step(10)
    patience = house.core._pace.patience
    house.device.planning_s = 0.9 * STEP_S
    house.step()
    house.device.planning_s = PLANNING_S
    house.step(2)
    assert sum(gap > 0 for gap in house.device.gaps()) == 1
    assert patience / 2 <= house.core._pace.patience < 0.6 * patience
    house.step(20)
    assert house.core._pace.patience > 0.52 * patience
    assert sum(gap > 0 for gap in house.device.gaps()) == 1


def test_the_gap_that_a_device_always_has_is_not_waiting() -> None:
    """A CPU hands over its result and reads the next plan between two steps."""
    house = HouseInTime()
    house.device.own_gap_s = 0.1 * STEP_S
    house.put(add_request(1, prompt=1, max_tokens=60))
    house.step(20)
    patience = house.core._pace.patience
    assert house.device.gaps()[5:] == pytest.approx([0.1 * STEP_S] * (len(house.device.gaps()) - 5))
    house.device.planning_s = 0.9 * STEP_S
    house.step(2)
    assert house.core._pace.patience < 0.6 * patience


def test_after_a_long_step_a_short_one_is_not_waited_for() -> None:
    """A prompt of many tokens, then single ones: they may take as long, or their share of it."""
    house = HouseInTime()
    house.put(add_request(1, prompt=40, max_tokens=20))
    house.device.step_s = 20 * STEP_S
    house.step()
    house.device.step_s = STEP_S / 2
    house.step(20)
    assert not any(house.device.gaps())


@pytest.mark.parametrize(("step_s", "waits"), [(0.0025, False), (0.005, True)])
def test_a_short_wait_is_left_out(step_s: float, waits: bool) -> None:
    """The core is not woken once more for each step where that is the length of one."""
    house = HouseInTime()
    house.device.step_s, house.device.planning_s = step_s, 0.0002
    house.put(add_request(1, prompt=1, max_tokens=40))
    house.run_out()
    assert not any(house.device.gaps())
    assert (len(house.device.waits) > 30) == waits and all(wait >= 0.002 for wait in house.device.waits)
