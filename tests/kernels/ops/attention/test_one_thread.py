"""Torch's threads, for a while."""

import pytest
import torch

from kernels.ops.attention.paged_attention import one_thread


@pytest.mark.parametrize("before", [1, 3])
def test_the_number_comes_back(before: int):
    """Behind an exception, too."""
    torch.set_num_threads(before)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == before
