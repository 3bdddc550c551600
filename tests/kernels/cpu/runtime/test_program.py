"""Programs on several threads: every operation sees all of the one before it, whichever thread computed
it."""

import threading

import pytest
import torch

from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16
WIDTH = 112  # 7 strips of 16 columns, 2 1/3 blocks
DEPTH = 40


def chain() -> list[PackedWeight]:
    """Products whose results are the next one's input."""
    weights = [random(WIDTH, WIDTH, dtype=BF16, seed=i, scale=WIDTH**-0.5) for i in range(DEPTH)]
    return [pack_weight(weight, None) for weight in weights]


@pytest.mark.parametrize("tokens", [1, 2, 7, 33, 300, 600])
def test_a_chain_of_products(tokens: int, threads: int):
    """Bit for bit what one product after the other gives, in run after run of one program."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    weights = chain()
    buffers = [torch.empty(tokens, WIDTH, dtype=BF16) for _ in range(DEPTH + 1)]
    work = Program(DEPTH)
    for i, weight in enumerate(weights):
        work.put(i, weight.product, tokens, weight.record(buffers[i], buffers[i + 1]), 0)
    for seed in range(5):
        x = random(tokens, WIDTH, dtype=BF16, seed=seed)
        buffers[0].copy_(x)
        for buffer in buffers[1:]:
            buffer.fill_(torch.nan)
        TEAM.run(work)
        for weight in weights:
            x = weight.multiply(x)
        assert torch.equal(buffers[-1], x)


def test_nothing_to_do(threads: int):
    """No rows: the program ends, and its neighbours compute."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    weight = chain()[0]
    x, out, none = random(3, WIDTH, dtype=BF16), torch.empty(3, WIDTH, dtype=BF16), torch.empty(0, WIDTH)
    work = Program(3)
    for i, (rows, result) in enumerate(((0, none), (3, out), (0, none))):
        work.put(i, weight.product, rows, weight.record(x, result.to(BF16) if rows == 0 else result), 0)
    TEAM.run(work)
    assert torch.equal(out, weight.multiply(x))


def test_rows_change_from_run_to_run(threads: int):
    """As a step's tokens do. What a late thread still knows of the run before does no harm."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    weight = chain()[0]
    x, out = random(200, WIDTH, dtype=BF16), torch.empty(200, WIDTH, dtype=BF16)
    expected = weight.multiply(x)
    work = Program(1)
    work.put(0, weight.product, 0, weight.record(x, out), 0)
    for turn in range(300):
        rows = (turn * 37) % 200 + 1
        out.fill_(torch.nan)
        work.records[:, 1] = rows
        TEAM.run(work)
        assert torch.equal(out[:rows], expected[:rows])
        assert bool(out[rows:].isnan().all())


def test_two_callers_take_turns():
    """Threads of this process that each run operations of their own."""
    weights = chain()
    inputs = [random(9, WIDTH, dtype=BF16, seed=seed) for seed in (1, 2)]
    expected = [weights[0].multiply(x) for x in inputs]
    wrong: list[int] = []

    def multiply(caller: int) -> None:
        for _ in range(200):
            if not torch.equal(weights[0].multiply(inputs[caller]), expected[caller]):
                wrong.append(caller)

    callers = [threading.Thread(target=multiply, args=(caller,)) for caller in (0, 1)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert wrong == []


def test_a_thread_that_lost_its_core():
    """One of two threads stops in the middle of a unit, until the other one is four records further: as far
    as the slack allows. The unit is computed twice, and the straggler is waited for at the fifth."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program
    from tests.kernels.cpu.straggling import GAVE_UP, LEFT, RELEASE, Shared, mark, release, stumble

    slack = 4
    words = torch.zeros(16, dtype=torch.int64)
    work = Program(slack + 2, slack=slack)
    work.put(0, stumble, 1, Shared(words=words.data_ptr()), 1, repeatable=True)
    for index in range(1, slack - 1):
        work.put(index, mark, 1, Shared(words=words.data_ptr(), own=8 + index), 1)
    work.put(slack - 1, release, 1, Shared(words=words.data_ptr()), 1)
    for index in range(slack, slack + 2):
        work.put(index, mark, 1, Shared(words=words.data_ptr(), own=8 + index), 1)
    before = TEAM.threads
    TEAM.set_threads(2)
    for run in range(1, 50):
        words.zero_()
        TEAM.run(work)
        assert words[:2].tolist() == [2, 1] and words[RELEASE] == 1 and words[LEFT] == 1
        assert words[GAVE_UP] == 0, f"no other thread computed it, in run {run}"
        seen = [int(words[8 + index]) for index in (*range(1, slack - 1), slack, slack + 1)]
        assert seen[-2:] == [2, 2] and set(seen[:-2]) == {1}
    TEAM.set_threads(before)


def test_without_slack_every_thread_is_waited_for():
    """The unit is computed once."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program
    from tests.kernels.cpu.straggling import Shared, mark

    words = torch.zeros(16, dtype=torch.int64)
    work = Program(8)
    for index in range(8):
        work.put(index, mark, 1, Shared(words=words.data_ptr(), own=8 + index), 1, repeatable=True)
    before = TEAM.threads
    TEAM.set_threads(2)
    for _ in range(200):
        words.zero_()
        TEAM.run(work)
        assert words[8:].tolist() == [1] * 8
    TEAM.set_threads(before)


def test_more_threads_than_a_team_has_places_for():
    from kernels.cpu.runtime.program import MOST_THREADS
    from kernels.cpu.runtime.thread_pool import TEAM

    before = TEAM.threads
    with pytest.raises(ValueError, match="threads is 1025"):
        TEAM.set_threads(MOST_THREADS + 1)
    assert TEAM.threads == before
