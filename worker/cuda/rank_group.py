"""Groups whose ranks are CUDA devices of one host: torch.distributed copies between devices, by NCCL, and
what the host knows goes through memory that processes share (worker.cpu.rank_memory).

NCCL copies, and each rank adds for itself (kernels.triton.matmul.range_launch): a library's sums have an
order of their own. Copies are launched on the device's stream, also within captured graphs, and the host
waits for none of them. Without devices gloo copies between tensors of CPUs, for tests and Triton's
interpreter.

No GPU has run this.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from kernels.cpu.runtime.rank_link import RankLink
from kernels.ops.attention.ragged import Integers
from worker.cpu.rank_group import ProcessGroup, make_groups
from worker.cpu.rank_peers import DEADLINE_S, RankPeers
from worker.loop import RankGone
from worker.parallel import Groups, ParallelGroup, Stage

_LOOPBACK = "127.0.0.1"
_CONNECT = timedelta(seconds=60)
_LOOK = timedelta(seconds=0.1)
_LONGEST = timedelta(seconds=2 * DEADLINE_S)


class DeviceCopies:
    """Copies between the devices of this rank and others. For one thread."""

    def __init__(
        self, ranks: RankPeers, keys: PrefixStore, rank: int, size: int, place: torch.device
    ) -> None:
        """Connects, by NCCL with the first copy. keys: of these ranks alone. rank: of this one among them.
        Raises RuntimeError."""
        self.size, self.place, self._ranks, self._by_nccl = size, place, ranks, place.type == "cuda"
        self._backend = _connect(keys, rank, size, self._by_nccl)

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all ranks, [ranks, ...]. Raises RankGone."""
        part = part.contiguous()
        parts = torch.empty((self.size, *part.shape), dtype=part.dtype, device=part.device)
        self._wait(lambda: self._backend._allgather_base(_bytes(parts), _bytes(part)))
        return parts

    def from_first(self, tensor: torch.Tensor, is_first: bool) -> torch.Tensor:
        """Returns the tensor of rank 0; those of the others have its shape and dtype. Raises RankGone."""
        copied = tensor.contiguous() if is_first else torch.empty_like(tensor, memory_format=_CONTIGUOUS)
        self._wait(lambda: self._backend.broadcast(_bytes(copied), 0))
        return copied

    def _wait(self, copy: Any) -> None:
        """Returns when what follows on the stream sees the copy; by gloo, when it is done."""
        try:
            work = copy()
            if self._by_nccl:
                work.wait()  # the stream does
                return
            while not work.is_completed():
                try:
                    work.wait(_LOOK)
                except RuntimeError:  # also where no more than this time has passed
                    self._ranks.check()
            work.wait()
        except RuntimeError as error:
            self._ranks.check()
            line = str(error).partition("\n")[0]
            raise RankGone(f"rank {self._ranks.rank} of the worker has lost another one: {line}") from error


_CONTIGUOUS = torch.contiguous_format


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as bytes, [N]."""
    return tensor.view(-1).view(torch.uint8)


def _connect(keys: PrefixStore, rank: int, size: int, by_nccl: bool) -> Any:
    """Returns the ProcessGroup of a backend. Raises RuntimeError."""
    if by_nccl:
        from torch._C._distributed_c10d import ProcessGroupNCCL

        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # by which ranks meet: all are on this host
        options = ProcessGroupNCCL.Options()
        options._timeout = _LONGEST
        return ProcessGroupNCCL(keys, rank, size, options)
    gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    gloo._timeout = _CONNECT
    made = ProcessGroupGloo(keys, rank, size, gloo)
    made._set_default_timeout(_LONGEST)
    return made


@dataclass(frozen=True)
class DeviceGroup(ParallelGroup):
    """This process is a rank, whose tensors are on its device."""

    copies: DeviceCopies = field(kw_only=True)
    host: ProcessGroup = field(kw_only=True)
    """The same ranks, for what their hosts tell one another."""

    @property
    def link(self) -> RankLink | None:
        return None

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Raises RankGone."""
        return self.copies.gather(part).unbind(0)

    def stacked(self, part: torch.Tensor) -> torch.Tensor:
        return self.copies.gather(part)

    def from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.copies.from_first(tensor, self.rank == 0)

    def send(self, x: torch.Tensor) -> None:
        self.from_first(x)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.from_first(torch.empty(shape, dtype=dtype, device=self.copies.place))

    def tell(self, numbers: Integers) -> Integers:
        return self.host.tell(numbers)

    def least(self, count: int) -> int:
        return self.host.least(count)


def make_device_groups(ranks: RankPeers, tensor: int, starts: tuple[int, ...], place: torch.device) -> Groups:
    """Returns the groups of this rank, whose devices are connected. tensor, starts: see make_groups(). place:
    the device of this rank. Raises RankGone, and RuntimeError where ranks cannot connect."""
    store = _meet(ranks)
    host = make_groups(ranks, tensor, starts)

    def on_devices(group: ParallelGroup, kind: str, *members: int) -> ParallelGroup:
        """kind: of the group, as others may have the same members."""
        if not isinstance(group, ProcessGroup):
            return group  # of this rank alone
        keys = PrefixStore(f"{kind} {'-'.join(map(str, members))}", store)
        copies = DeviceCopies(ranks, keys, group.rank, group.size, place)
        return DeviceGroup(group.rank, group.size, copies=copies, host=group)

    rank, size = ranks.rank, ranks.size
    world = on_devices(host.world, "all", *range(size))
    if not starts:
        return Groups(world, world)
    stage = host.stage
    own = on_devices(host.tensor, "stage", *range(stage.number * tensor, (stage.number + 1) * tensor))
    before, behind = ((rank - tensor) % size, rank), (rank, (rank + tensor) % size)
    pairs: dict[tuple[int, ...], ParallelGroup] = {}
    for members, pair in sorted({before: stage.before, behind: stage.behind}.items()):  # on all in one order
        pairs[members] = on_devices(pair, "handover", *members)
    return Groups(world, own, Stage(stage.number, stage.starts, pairs[before], pairs[behind]))


def _meet(ranks: RankPeers) -> TCPStore:
    """Returns the store in which ranks find one another: rank 0 serves it, on the loopback address."""
    first, port = ranks.rank == 0, 0
    if first:
        store = TCPStore(_LOOPBACK, 0, None, True, _CONNECT, wait_for_workers=False)
        port = store.port
    port = ranks.of_first(port)
    return store if first else TCPStore(_LOOPBACK, port, None, False, _CONNECT, wait_for_workers=False)
