"""The transfers of a worker: answers to its core, and an end of all writing."""

from pagewire.internal.v1.worker_pb2 import (
    BlocksRead,
    Initialize,
    ReadBlocks,
    Shutdown,
    WorkerCommand,
    WorkerMessage,
)
from pagewire.ipc.columns import pack_u32
from tests.worker.kv_transfer.test_tcp import KEY, memory
from worker.kv_transfer.memory import EmptyMemory, PoolMemory
from worker.kv_transfer.transfer import BlockTransfer, open_transfer
from worker.loop import execute_steps


def opened(of: PoolMemory | EmptyMemory) -> BlockTransfer:
    transfer = open_transfer(Initialize(cache_key=KEY), of)
    assert transfer is not None
    return transfer


def test_only_a_key_opens_a_port() -> None:
    assert open_transfer(Initialize(), memory(1)) is None
    assert open_transfer(Initialize(cache_key=KEY), None) is None


def test_a_worker_reads_from_another() -> None:
    source, target = memory(1), memory(2)
    one, other = opened(source), opened(target)
    order = ReadBlocks(number=5, address=one.address, blocks=pack_u32([6]), targets=pack_u32([2]))
    answer = other.read(order).result()
    assert (answer.number, answer.problem) == (5, "") and answer.duration_us > 0
    assert target.read(2) == source.read(6)


def test_a_problem_is_an_answer() -> None:
    transfer = opened(memory(1))
    order = ReadBlocks(number=5, address=transfer.address, blocks=pack_u32([6]), targets=pack_u32([99]))
    assert transfer.read(order).result().problem == "a target is no block"


def test_stop_all_returns_when_nothing_is_written() -> None:
    transfer = opened(memory(1))
    blocks, targets = pack_u32([6]), pack_u32([2])
    orders = [
        ReadBlocks(number=n, address=transfer.address, blocks=blocks, targets=targets) for n in (1, 2, 3)
    ]
    answers = [transfer.read(order) for order in orders]
    transfer.stop_all()
    assert all(answer.done() for answer in answers)
    transfer.stop(1)


class Core:
    """Sends one command, and Shutdown when it is answered."""

    def __init__(self, order: ReadBlocks) -> None:
        self._commands = [WorkerCommand(read_blocks=order)]
        self.answers: list[BlocksRead] = []

    def send(self, message: WorkerMessage) -> None:
        self.answers.append(message.blocks_read)

    def receive(self, seconds: float | None) -> WorkerCommand:
        if self.answers:
            return WorkerCommand(shutdown=Shutdown())
        return self._commands.pop() if self._commands else WorkerCommand()

    def has_command(self) -> bool:
        return False


class Runner:
    """A worker without steps."""

    def __init__(self, transfer: BlockTransfer) -> None:
        self.transfer = transfer

    def seconds_left(self) -> None:
        """There is no step."""


def test_the_loop_answers_its_core() -> None:
    source, target = memory(1), memory(2)
    one = opened(source)
    core = Core(ReadBlocks(number=9, address=one.address, blocks=pack_u32([0]), targets=pack_u32([1])))
    execute_steps(core, Runner(opened(target)))  # type: ignore[arg-type]
    assert [answer.number for answer in core.answers] == [9]
    assert target.read(1) == source.read(0)
