"""Calls from other threads into a selector loop."""

import select
import threading

from pagewire.supervisor.events import LoopCalls


def test_a_call_wakes_the_loop_and_runs_there():
    calls, ran = LoopCalls(), []
    threading.Thread(target=lambda: calls.put(lambda: ran.append(threading.current_thread()))).start()
    assert select.select([calls], [], [], 60)[0]
    calls.run()
    assert ran == [threading.main_thread()]
    assert not select.select([calls], [], [], 0)[0]
    calls.run()
    calls.close()


def test_calls_run_in_their_order_and_those_that_they_put_run_next_time():
    """Otherwise a call that puts itself again would keep the loop for ever."""
    calls, ran = LoopCalls(), []

    def again() -> None:
        ran.append("again")
        calls.put(again)

    calls.put(lambda: ran.append("first"))
    calls.put(again)
    calls.run()
    assert ran == ["first", "again"]
    assert select.select([calls], [], [], 0)[0], "what was put meanwhile wakes the loop"
    calls.run()
    assert ran == ["first", "again", "again"]
    calls.close()
