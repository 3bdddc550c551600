"""Calls from other threads into a selector loop."""

import select
import threading

from pagewire.supervisor.loop_calls import LoopCalls


def test_a_call_wakes_the_loop_and_runs_there():
    calls, ran = LoopCalls(), []
    threading.Thread(target=lambda: calls.put(lambda: ran.append(threading.current_thread()))).start()
    assert select.select([calls], [], [], 60)[0]
    calls.run()
    assert ran == [threading.main_thread()]
    assert not select.select([calls], [], [], 0)[0]
    calls.run()
    calls.close()
