"""The worker for CUDA, its kernels in Triton's interpreter on the CPU; with `-m gpu`, on a CUDA device."""

from tests.kernels.triton.conftest import arithmetic_of_a_gpu, device, pytest_configure

__all__ = ["arithmetic_of_a_gpu", "device", "pytest_configure"]
