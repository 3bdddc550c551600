"""Several pieces of work at once, each on a thread of its own, with one that listens."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event

import torch

Work = Callable[[], Iterator[int]]
"""Does a little at each step, and yields how much."""


def run_side_by_side(works: Sequence[Work], num_threads: int) -> Iterator[int]:
    """Runs all, so many at a time and in this order, and yields what they yield. The first that fails ends
    all, and its exception is raised."""
    told: SimpleQueue[int | BaseException | None] = SimpleQueue()
    stop = Event()
    inference = torch.is_inference_mode_enabled()  # of this thread alone

    def run(work: Work) -> None:
        try:
            with torch.inference_mode(inference):
                for count in work():
                    told.put(count)
                    if stop.is_set():
                        return
            told.put(None)
        except BaseException as error:
            told.put(error)

    with ThreadPoolExecutor(num_threads, thread_name_prefix="weights") as pool:
        for work in works:
            pool.submit(run, work)
        left = len(works)
        try:
            while left:
                message = told.get()
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    left -= 1
                else:
                    yield message
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations of torch do not start threads of their own here: waiting for these at the end of each short
    operation took forty times as long where they had no core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
