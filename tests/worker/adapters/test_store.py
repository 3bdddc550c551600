"""Loading adapters beside the steps."""

import threading
from pathlib import Path

import pytest
import torch

from pagewire.internal.v1 import worker_pb2
from tests.worker.adapters.test_rows import DIGESTS, synthetic
from worker.adapters.adapter import Adapter, AdapterError, Delta
from worker.adapters.store import AdapterStore, low_rank, takes_adapter
from worker.layers.linear import RowLinear, column_linear
from worker.models.base import LanguageModel
from worker.parallel import Placement
from worker.step.plan_reader import NoAdapters
from worker.step.rows import PlanError

PLACE = Placement(torch.float32, torch.device("cpu"))
ORDER = worker_pb2.LoadAdapter(number=7, source="/adapters/one", digest=DIGESTS[1], max_bytes=1 << 20)


class Model(LanguageModel):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = column_linear(20, (24, 8), False, PLACE)
        self.down = RowLinear(32, 20, False, PLACE)

    def forward(self, batch: object, caches: object) -> torch.Tensor:
        raise NotImplementedError


def test_an_adapter_is_loaded_as_ordered():
    """With what the order says; it is held under its digest until it is dropped."""
    model, asked = Model(), []

    def read(*order: object) -> Adapter:
        asked.append(order)
        return synthetic(model, 1)

    store = AdapterStore(model, read)
    answer = store.load(ORDER).result()
    assert asked == [(Path("/adapters/one"), model, DIGESTS[1], 1 << 20)]
    assert (answer.number, answer.digest, answer.rank, answer.base) == (7, DIGESTS[1], 12, "base")
    assert answer.bytes > 0 and not answer.problem
    assert store.find(DIGESTS[1]) is not None
    (held,) = store.loaded
    assert held.digest == DIGESTS[1] and held.number == 0
    for _ in range(2):
        store.drop(DIGESTS[1])
        assert store.find(DIGESTS[1]) is None and not store.loaded


def test_the_next_core_hears_of_a_load_that_the_last_one_ordered():
    """Or it would be held, and never dropped."""
    model, goes_on = Model(), threading.Event()

    def read(*order: object) -> Adapter:
        goes_on.wait()
        return synthetic(model, 1)

    store = AdapterStore(model, read)
    store.load(ORDER)
    threading.Timer(0.01, goes_on.set).start()
    assert [held.digest for held in store.loaded] == [DIGESTS[1]]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (AdapterError("lora_A of q_proj has rank 300"), "lora_A of q_proj has rank 300"),
        (MemoryError(), "memory does not suffice"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "allocate memory"),
        (FileNotFoundError(2, "No such file or directory", "/adapters/one"), "No such file"),
    ],
)
def test_a_problem_is_the_answer(error: Exception, problem: str):
    def read(*order: object) -> Adapter:
        raise error

    answer = AdapterStore(Model(), read).load(ORDER).result()
    assert answer.number == 7 and problem in answer.problem and not answer.digest


def test_an_adapter_that_is_loaded_again_is_the_same_object():
    """Rows that have it would be of two adapters otherwise."""
    model = Model()
    store = AdapterStore(model, lambda *_: synthetic(model, 1))
    one = store.load(ORDER).result()
    weights = store.find(DIGESTS[1])
    assert store.load(ORDER).result() == one and store.find(DIGESTS[1]) is weights


def test_memory_is_limited():
    """To what the adapter takes once it is packed."""
    model = Model()
    store = AdapterStore(model, lambda *_: synthetic(model, 1))
    needed = store.load(ORDER).result().bytes
    store.drop(DIGESTS[1])
    for max_bytes in (needed - 1, needed):
        order = worker_pb2.LoadAdapter(number=8, max_bytes=max_bytes)
        answer = store.load(order).result()
        assert bool(answer.problem) == (max_bytes < needed), answer.problem
        assert bool(store.loaded) == (max_bytes == needed)


def test_layers_that_take_none_are_refused():
    """By their kind, and nothing is held."""
    model = Model()
    store, other = AdapterStore(model), RowLinear(32, 20, False, PLACE)
    other.takes_adapters = False
    assert takes_adapter(model.down) and not takes_adapter(other)
    delta = Delta(torch.zeros(1, 32), torch.zeros(20, 1), 1.0)
    with pytest.raises(AdapterError, match="RowLinear"):
        store.add(Adapter(DIGESTS[0], 1, (), "", {other: (delta,)}))
    assert not store.loaded


def test_parts_begin_behind_one_another():
    """Those without a delta, too."""
    layer = Model().up
    delta = Delta(torch.zeros(1, 20), torch.zeros(8, 1), 0.5)
    (((_, _, scale, first),),) = low_rank(layer, (None, delta))
    assert (scale, first) == (0.5, 24)
    assert list(low_rank(layer, ())) == [()]


def test_rows_with_adapters_are_refused_where_none_can_be_loaded():
    NoAdapters().add_row(0, worker_pb2.NewRow(), [3], [])
    with pytest.raises(PlanError, match="row 0 has an adapter"):
        NoAdapters().add_row(0, worker_pb2.NewRow(adapter=worker_pb2.RowAdapter()), [3], [])
