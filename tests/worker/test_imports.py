"""What a standby leaves out of its imports, and gets back."""

import subprocess
import sys

from tests.patience import PATIENCE_S
from tests.worker.test_main import ROOT

LEFT_OUT = "torch._decomp", "torch._refs", "torch._prims"
CODE = """
import gc, sys
from worker.imports import import_metas, quick_imports
with quick_imports():
    import torch
    assert not gc.isenabled()
assert gc.isenabled()
left_out = {left_out!r}
assert not set(left_out) & set(sys.modules), "torch imports them for something else now"
ones = torch.ones(2, 3, device="meta")
assert (ones @ ones.T + 1).shape == (2, 2), "what is computed in C++"
import_metas()
assert set(left_out) <= set(sys.modules)
assert torch._meta_registrations is sys.modules["torch._meta_registrations"]
assert torch._meta_registrations.register_meta
assert torch.linalg.eigh(torch.ones(3, 3, device="meta"))[0].shape == (3,), "what is registered there"
before = sys.modules["torch._meta_registrations"]
import_metas()
with quick_imports():
    import torch
assert sys.modules["torch._meta_registrations"] is before
"""


def test_what_is_left_out_comes_back_when_it_is_needed() -> None:
    """In a process of its own: here torch has been imported."""
    code = CODE.format(left_out=LEFT_OUT)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


def test_nothing_is_left_behind_where_torch_is_not_installed() -> None:
    code = """
import sys
from worker.imports import quick_imports
sys.modules.pop("torch", None)
try:
    with quick_imports():
        raise ModuleNotFoundError
except ModuleNotFoundError:
    pass
assert not [name for name in sys.modules if name.startswith("torch")]
"""
    assert not subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_S).returncode


def test_weights_are_drawn_where_imports_were_left_out() -> None:
    """--load-format dummy, in a worker: torch's generators need what a worker leaves for later."""
    code = """
from worker.imports import quick_imports
with quick_imports():
    from worker.load import load
    from worker.platforms.cpu import CpuPlatform
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
initialize = worker_pb2.Initialize(
    model_path=str(checkpoint_folder("demo")), device="cpu", load_format="dummy", cpu_kernels="none",
    max_num_seqs=1, max_num_batched_tokens=16, block_size=16, num_blocks=4,
)
load(initialize, CpuPlatform(WorkerConfig(threads=1)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
