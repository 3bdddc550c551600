"""Log-probabilities of all tokens, against float64."""

import pytest
import torch

from kernels.ops.sampling.logprobs import log_softmax
from tests.kernels.references.sampling import log_softmax_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import SHAPES, smooth_logits, tied_logits
from tests.kernels.tolerances import assert_close


@pytest.mark.parametrize(("a", "v"), [*SHAPES, (2, 50_257)])
@pytest.mark.parametrize("shift", [0.0, 80.0, -300.0])
def test_equals_float64(a: int, v: int, shift: float) -> None:
    """Wherever the logits lie; float32 has 2^-16 to 2^-15 between two numbers at 300."""
    logits = smooth_logits(a, v) + shift
    result = log_softmax(logits)
    assert result.dtype == torch.float32
    assert_close(result, log_softmax_reference(logits), 4e-6, 1e-6)


def test_masked_and_certain() -> None:
    """What cannot be is -inf; what is certain is 0."""
    inf = torch.inf
    result = log_softmax(torch.tensor([[-inf, 3.0, -inf], [0.0, 200.0, 0.0]]))
    assert result.tolist() == [[-inf, 0.0, -inf], [-200.0, 0.0, -200.0]]


@pytest.mark.parametrize("threads", [1, 2])
def test_alone_as_in_a_crowd(threads: int) -> None:
    """Bit for bit, with any number of threads."""
    logits = smooth_logits(7, 40_009)
    alone = [log_softmax(row[None]) for row in logits]
    torch.set_num_threads(threads)
    assert torch.equal(log_softmax(logits), torch.cat(alone))
    assert torch.equal(log_softmax(logits[:1]), alone[0])


@pytest.mark.parametrize("v", [1, 2, 7, 1031])
def test_rows_are_independent(v: int) -> None:
    assert_rows_are_independent(log_softmax, tied_logits(7, v))


@pytest.mark.parametrize("v", [1, 15, 16, 17, 4099])
def test_probabilities_add_up_to_one(v: int) -> None:
    assert (log_softmax(smooth_logits(3, v)).double().exp().sum(-1) - 1).abs().max() < 1e-5


def test_no_rows() -> None:
    assert log_softmax(torch.empty(0, 9)).shape == (0, 9)


def test_rows_that_are_no_distribution() -> None:
    """NaN, +inf, and nothing above -inf: no number that could be taken for a log-probability above 0."""
    inf, nan = torch.inf, torch.nan
    result = log_softmax(torch.tensor([[nan, 1.0], [inf, 1.0], [-inf, -inf], [0.0, 0.0]]))
    assert result[:3].isnan().any(-1).all() and result[3].isfinite().all()
