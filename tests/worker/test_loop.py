"""The execute loop: when a plan is launched, and when a result is handed over."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from pagewire.internal.v1 import worker_pb2
from worker.loop import StepRunner, execute_steps, never

SECONDS = 1.0


class Device:
    """Takes a second for each step, in order. Time passes only in waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spans: list[tuple[float, float]] = []  # of steps
        self.compiling: dict[str, Future[object]] = {}
        self._num_finished = 0

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        free = self.spans[-1][1] if self.spans else 0.0
        start = max(self.now, free)
        self.spans.append((start, start + SECONDS))

    def compile_grammar(self, grammar: str) -> "Future[object]":
        self.compiling[grammar] = Future()
        return self.compiling[grammar]

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        return False

    def seconds_left(self) -> float | None:
        if self._num_finished == len(self.spans):
            return None
        return max(0.0, self.spans[self._num_finished][1] - self.now)

    def finish(self) -> worker_pb2.StepResult:
        self.now = max(self.now, self.spans[self._num_finished][1])
        self._num_finished += 1
        return worker_pb2.StepResult(step=self._num_finished)


class ScriptedCore:
    """Keeps `under_way` plans in flight, and needs a tenth of a step to make the next one."""

    def __init__(self, device: Device, steps: int, under_way: int) -> None:
        self.device = device
        self.results: list[tuple[int, float]] = []  # and when they came
        self.steps = steps
        self.plans = deque([0.0] * under_way)  # when they come

    def send(self, message: worker_pb2.WorkerMessage) -> None:
        self.results.append((message.step_result.step, self.device.now))
        self.plans.append(self.device.now + 0.1)

    def has_command(self) -> bool:
        return False

    def receive(self, seconds: float | None) -> worker_pb2.WorkerCommand:
        if len(self.results) == self.steps:
            return worker_pb2.WorkerCommand(shutdown=worker_pb2.Shutdown())
        until = float("inf") if seconds is None else self.device.now + seconds
        if not self.plans or self.plans[0] > until:
            assert seconds is not None, "both wait"
            self.device.now = until
            return worker_pb2.WorkerCommand()
        self.device.now = max(self.device.now, self.plans.popleft())
        return worker_pb2.WorkerCommand(step_plan=worker_pb2.StepPlan(step=1))


def serve(under_way: int) -> tuple[Device, ScriptedCore]:
    device = Device()
    core = ScriptedCore(device, 5, under_way)
    execute_steps(core, device)
    return device, core


def gaps(device: Device) -> list[float]:
    ends = [end for _, end in device.spans]
    return [round(start - end, 6) for (start, _), end in zip(device.spans[1:], ends, strict=False)]


def test_with_a_plan_in_hand_the_device_is_never_idle() -> None:
    device, core = serve(under_way=2)
    assert not any(gaps(device)[:4])
    assert core.results == [(step, SECONDS * step) for step in range(1, 6)], "each result comes at once"


def test_without_one_it_waits_for_the_core() -> None:
    device, core = serve(under_way=1)
    assert set(gaps(device)) == {0.1}
    assert [round(at, 6) for _, at in core.results] == [1.0, 2.1, 3.2, 4.3, 5.4]


def test_a_device_that_blocks_hands_over_before_it_looks_at_the_next_plan() -> None:
    log: list[str] = []

    class Blocking:
        """A runner whose steps are done when launch() returns."""

        results = deque[worker_pb2.StepResult]()

        def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
            log.append(f"execute {plan.step}")
            self.results.append(worker_pb2.StepResult(step=plan.step))

        def compile_grammar(self, grammar: str) -> "Future[object]":
            raise AssertionError("no row has a grammar")

        def awaits(self, plan: worker_pb2.StepPlan) -> bool:
            return False

        def seconds_left(self) -> float | None:
            return 0.0 if self.results else None

        def finish(self) -> worker_pb2.StepResult:
            return self.results.popleft()

    class Commands:
        plans = [3, 2, 1]

        def send(self, message: worker_pb2.WorkerMessage) -> None:
            log.append(f"send {message.step_result.step}")

        def has_command(self) -> bool:
            return bool(self.plans)

        def receive(self, seconds: float | None) -> worker_pb2.WorkerCommand:
            assert seconds is None
            if not self.plans:
                return worker_pb2.WorkerCommand(shutdown=worker_pb2.Shutdown())
            return worker_pb2.WorkerCommand(step_plan=worker_pb2.StepPlan(step=self.plans.pop()))

    runner: StepRunner = Blocking()
    execute_steps(Commands(), runner)
    assert log == ["execute 1", "send 1", "execute 2", "send 2", "execute 3", "send 3"]


def test_steps_go_on_while_a_grammar_is_compiled() -> None:
    """That it is compiled, or cannot be, is told between steps, with its number."""
    device, log = Device(), list[str]()

    class Core:
        """Sends two grammars, then plans; the grammars are done during the second and the third step."""

        def __init__(self) -> None:
            commands = [worker_pb2.CompileGrammar(number=number, grammar=f"g{number}") for number in (7, 8)]
            self._left = deque(worker_pb2.WorkerCommand(compile_grammar=command) for command in commands)
            self._left.extend(worker_pb2.WorkerCommand(step_plan=worker_pb2.StepPlan()) for _ in range(4))

        def send(self, message: worker_pb2.WorkerMessage) -> None:
            if message.HasField("step_result"):
                log.append(f"step {message.step_result.step}")
                if message.step_result.step == 2:
                    device.compiling["g8"].set_exception(ValueError("no grammar"))
                if message.step_result.step == 3:
                    device.compiling["g7"].set_result(None)
            else:
                log.append(f"compiled {message.grammar_compiled.number}")

        def has_command(self) -> bool:
            return False

        def receive(self, seconds: float | None) -> worker_pb2.WorkerCommand:
            if len(device.compiling) == 2 and not all(each.done() for each in device.compiling.values()):
                assert seconds is not None, "it looks at what is being compiled"
            if len(log) == 6:
                return worker_pb2.WorkerCommand(shutdown=worker_pb2.Shutdown())
            if device.seconds_left() is not None:
                device.now += seconds or 0.0
                return worker_pb2.WorkerCommand()
            return self._left.popleft()

    execute_steps(Core(), device)
    assert log == ["step 1", "step 2", "compiled 8", "step 3", "compiled 7", "step 4"]
