"""What tests need of the machine."""

import pytest

from kernels.cpu.support import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marker avx512_bf16 is about need, as `gpu` is: elsewhere these tests do not run."""
    marked = [item for item in items if item.get_closest_marker("avx512_bf16")]
    reason = why_not() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
