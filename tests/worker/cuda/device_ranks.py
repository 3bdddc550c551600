"""Ranks whose devices are CPUs, and one that dies. A process that is one of them imports little."""

import os
import signal

import torch

from kernels.cpu.runtime.rank_link import RankLink
from pagewire.internal.v1.worker_pb2 import Initialize
from worker.cpu.rank_memory import join
from worker.cuda.rank_group import make_device_groups
from worker.parallel import ParallelGroup


def one_of_two(rank: int, name: str, first_pid: int) -> ParallelGroup:
    """A rank of a group of this name."""
    command = Initialize(tensor_parallel_size=2, group_name=name, first_rank_pid=first_pid)
    ranks = join(command, rank, lambda what, fraction: None, RankLink.plain)
    return make_device_groups(ranks, 2, (), torch.device("cpu")).world


def die(name: str, first_pid: int) -> None:
    """Takes part in one copy."""
    one_of_two(1, name, first_pid).stacked(torch.ones(3))
    os.kill(os.getpid(), signal.SIGKILL)
