"""What a worker refuses of --speculate, in words that say why."""

import pytest

from engine_core.speculation import parse_speculation
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.exactness import TORCH, Exactness, on_cpu, on_cuda
from worker.speculation.options import check_exactness, read_speculation


def read(text: str, device: str) -> worker_pb2.Speculation | None:
    return read_speculation(worker_pb2.Initialize(speculation=parse_speculation(text)), device)


@pytest.mark.parametrize(
    ("text", "device", "why"),
    [
        ("draft:small", "cuda", "a draft model needs --device cpu"),
        ("draft:small", "simulated", "a draft model needs --device cpu"),
        ("simulated", "cpu", "the device is cpu"),
    ],
)
def test_refusals(text: str, device: str, why: str) -> None:
    with pytest.raises(StartupError, match=why) as refused:
        read(text, device)
    assert text in refused.value.why and refused.value.todo


def test_what_is_taken() -> None:
    assert read("", "cuda") is None
    taken = read("simulated:acceptance=90", "simulated")
    assert taken is not None and taken.acceptance == 90


@pytest.mark.parametrize(
    ("text", "device", "batch"),
    [
        ("lookup", "cpu", 8),
        ("draft:small", "cpu", 8),
        ("lookup:tokens=12", "cpu", 13),
        ("lookup:batch=5", "cpu", 5),
        ("lookup", "cuda", 16),
        ("simulated", "simulated", 16),
        ("lookup:tokens=12,batch=9", "cuda", 9),
    ],
)
def test_the_batch_suits_the_device_unless_it_is_named(text: str, device: str, batch: int) -> None:
    options = read(text, device)
    assert options is not None and options.batch == batch


def test_logits_that_depend_on_the_number_of_rows() -> None:
    """A draft would change tokens there: refused, with the reason."""
    options = read("lookup", "cuda")
    for exactness in (TORCH, on_cuda("sm_90", fast_matmul=True), on_cpu(None, has_attention=False)):
        with pytest.raises(StartupError, match="--speculate lookup needs logits that are equal bit for bit"):
            check_exactness(options, exactness)
        check_exactness(None, exactness)
    for has_attention in (True, False):  # torch's attention computes each query alone
        check_exactness(options, on_cpu("avx2", has_attention=has_attention))
    check_exactness(options, on_cuda("sm_90", fast_matmul=False))
    check_exactness(options, Exactness("simulated"))
