"""What a worker refuses of --speculate, in words that say why."""

import pytest

from pagewire.errors import StartupError
from pagewire.speculation import Speculation
from worker.exactness import SIMULATED, TORCH, on_cpu, on_cuda
from worker.startup.speculation import check_exactness, read_speculation


@pytest.mark.parametrize(
    ("text", "device", "why"),
    [
        ("draft:small", "cuda", "a draft model needs --device cpu"),
        ("draft:small", "simulated", "a draft model needs --device cpu"),
        ("simulated", "cpu", "the device is cpu"),
        ("lookup:tokens=0", "cpu", "tokens is 0; use 1 to 64"),
    ],
)
def test_refusals(text: str, device: str, why: str) -> None:
    with pytest.raises(StartupError, match=why) as refused:
        read_speculation(text, device)
    assert text in refused.value.why and refused.value.todo


def test_what_is_taken() -> None:
    assert read_speculation("", "cuda") is None
    assert read_speculation("lookup", "cpu") == Speculation("lookup", batch=8)
    assert read_speculation("lookup", "cuda") == Speculation("lookup", batch=16)
    assert read_speculation("simulated:acceptance=90", "simulated") is not None


def test_logits_that_depend_on_the_number_of_rows() -> None:
    """A draft would change tokens there: refused, with the reason."""
    options = Speculation("lookup")
    for exactness in (TORCH, on_cuda("sm_90", fast_matmul=True), on_cpu(None, has_attention=False)):
        with pytest.raises(StartupError, match="equal bit for bit"):
            check_exactness(options, exactness)
        check_exactness(None, exactness)
    for has_attention in (True, False):  # torch's attention computes each query alone
        check_exactness(options, on_cpu("avx2", has_attention=has_attention))
    check_exactness(options, on_cuda("sm_90", fast_matmul=False))
    check_exactness(options, SIMULATED)
