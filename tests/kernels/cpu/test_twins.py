"""Operations on rows and on states: compiled code gives what Python gives with the same function.

To the bit, but where an exponential or a reciprocal is computed, which Python does not round between its
steps as machine code does.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import kernels.cpu
from kernels.cpu.compiler.records import Operation
from kernels.cpu.elementwise.elements import Operations
from kernels.cpu_ops import ACTIVATIONS, CpuOps
from kernels.ops.experts.routing import Routing, Score
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape, ScanRates
from kernels.ops.states.spans import Spans
from kernels.ops.states.update_log import update_width
from tests.kernels.cpu.python_team import PythonTeam
from tests.kernels.cpu.states.test_delta_kernels import spans
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

F32 = torch.float32
DTYPES = [torch.bfloat16, F32]
WIDTHS = [16, 37]
ROWS = 3
NEAR = {torch.bfloat16: 2**-7, F32: 4e-6, torch.int64: 0.0}
"""Of results that an exponential is part of."""


def normal(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    return random(*shape, dtype=dtype, scale=3, seed=seed)


def rotate(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor:
    """Two of three heads, by an index, in place."""
    x, head_dim = normal(dtype, ROWS, 3, 2 * width), 2 * width
    cos, sin = (random(9, head_dim, dtype=F32, seed=seed) for seed in (1, 2))
    kernels.rotate(x[:, :2], cos, sin, torch.tensor([8, 0, 5]))
    return x


def clamped_swiglu(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor:
    return kernels.clamped_swiglu(normal(dtype, ROWS, 2 * width), 1.702, 2.0)


def weigh(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor:
    x, weights = normal(dtype, ROWS, width), random(ROWS, 2, dtype=F32)
    return kernels.weigh(x, weights, torch.tensor([[5, 0], [1, 4], [2, 3]]))


def combine(kernels: Any, dtype: torch.dtype, width: int) -> tuple[torch.Tensor, ...]:
    y, shared, weights = (
        normal(dtype, 6, width),
        normal(dtype, ROWS, width, seed=1),
        random(ROWS, 2, dtype=F32),
    )
    places = torch.tensor([[5, 0], [1, 4], [2, 3]])
    return kernels.combine(y, weights, places), kernels.combine(y, weights, places, shared)


def combine_gated(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor:
    y, shared, weights = (
        normal(dtype, 6, width),
        normal(dtype, ROWS, width, seed=1),
        random(ROWS, 2, dtype=F32),
    )
    return kernels.combine(y, weights, torch.tensor([[5, 0], [1, 4], [2, 3]]), shared, normal(F32, ROWS))


def route(score: Score, kernels: Any, dtype: torch.dtype, width: int) -> tuple[torch.Tensor, ...]:
    """Experts in four groups of which two are kept, normalized, with a correction."""
    groups = 4 if score in (Score.SOFTMAX, Score.SIGMOID) else 1
    routing = Routing(
        num_experts=width // 4 * 4,
        top_k=5,
        score=score,
        groups=groups,
        top_groups=min(groups, 2),
        group_best=2,
        normalized=True,
        least_sum=1e-20,
        scale=1.5,
        tolerance=0.4,
    )
    logits = normal(F32, ROWS, routing.num_experts)
    logits[0] = logits[0].round()
    correction = random(routing.num_experts, dtype=F32, seed=4, scale=0.1) if groups > 1 else None
    return kernels.route(logits, correction, routing)


TWO_ROWS = spans((1, 2, 2), (0, 0, 1))
DELTA = DeltaShape(1, 2, 3, 34)
SCAN = MambaShape(2, 34, 1, 3)


def convolve(kernels: Any, dtype: torch.dtype, width: int) -> tuple[torch.Tensor, ...]:
    """Rows of the input are longer than what is convolved."""
    x, weight, state = (
        normal(dtype, 3, width + 5),
        random(4, width, dtype=F32),
        random(2, 3, width, dtype=F32),
    )
    return kernels.convolution(x[:, :width], weight, weight[0], state, TWO_ROWS), state


def drafted(heads: int, keys: int, values: int) -> tuple[Spans, torch.Tensor]:
    """Two rows, of which the first one had a draft accepted and has one now, and the log of both."""
    rows = spans((1, 2, 2), (0, 0, 1))
    rows.draft(np.array([0, 1]), np.array([0, 1]))
    return rows, random(2, heads, 3, update_width(keys, values), dtype=F32, seed=3, scale=0.5)


def learn(kernels: Any, dtype: torch.dtype, width: int) -> tuple[torch.Tensor, ...]:
    """The state behind a row's first token is saved for another row, and its second one is drafted."""
    mixed, gates = random(3, DELTA.channels, dtype=F32), normal(dtype, 3, 4)
    state, rates = random(3, 2, 3, 34, dtype=F32), (random(2, dtype=F32).exp(), random(2, dtype=F32))
    rows, log = drafted(2, DELTA.key_dim, DELTA.value_dim)
    rows.save(1, 3, 2)
    return kernels.delta_rule(mixed, gates, *rates, state, DELTA, rows, log), state, log


def scan(kernels: Any, dtype: torch.dtype, width: int) -> tuple[torch.Tensor, ...]:
    state = random(2, SCAN.heads, SCAN.state_size, SCAN.head_dim, dtype=F32)
    rates = ScanRates(random(3, SCAN.heads, dtype=F32, seed=1).abs())
    mixed, steps = random(3, SCAN.channels, dtype=F32), normal(dtype, 3, SCAN.heads)
    rows, log = drafted(SCAN.heads, SCAN.state_size, SCAN.head_dim)
    return kernels.selective_scan(mixed, steps, rates, state, SCAN, rows, log), state, log


def gated_norm(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor:
    gate = normal(dtype, ROWS, 2 * width + 7)[:, : 2 * width]
    return kernels.gated_norm(normal(F32, ROWS, 2, width), gate, normal(dtype, width), 1e-6)


def grouped_norm(kernels: Any, dtype: torch.dtype, width: int) -> tuple[torch.Tensor, ...]:
    """What is normed changes, too."""
    x, gate = normal(F32, ROWS, 2 * width), normal(dtype, ROWS, 2 * width + 7)[:, : 2 * width]
    return kernels.grouped_norm(x, gate, normal(dtype, 2 * width), 2, 1e-6), x


Call = Callable[[Any, torch.dtype, int], "torch.Tensor | tuple[torch.Tensor, ...]"]


def on_rows(method: str, count: int, **options: Any) -> Call:
    """A method of CpuOps with one or two inputs [ROWS, width], and a weight and a bias of norms."""

    def call(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor | tuple[torch.Tensor, ...]:
        inputs = [normal(dtype, ROWS, width, seed=seed) for seed in range(count)]
        norm = {"rms_norm": 1, "add_rms_norm": 1, "layer_norm": 2, "add_layer_norm": 2}.get(method, 0)
        inputs += [normal(dtype, width, seed=seed) for seed in range(5, 5 + norm)]
        return getattr(kernels, method)(*inputs, **options)

    return call


def on_pairs(name: str) -> Call:
    return lambda kernels, dtype, width: kernels.gated_activation(normal(dtype, ROWS, 2 * width), name)


def logits(cap: float | None) -> Call:
    return lambda kernels, _, width: kernels.adjust_logits(normal(F32, ROWS, width), 0.3, cap)


def output_gate(kernels: Any, dtype: torch.dtype, width: int) -> torch.Tensor:
    return kernels.output_gate(normal(dtype, ROWS, width), normal(dtype, ROWS, width, seed=1))


EXACT: dict[str, Call] = {
    "rms_norm": on_rows("rms_norm", 1, eps=1e-5, offset=1.0),
    "add_rms_norm": on_rows("add_rms_norm", 2, eps=1e-5, offset=0.5, factor=0.3),
    "layer_norm": on_rows("layer_norm", 1, eps=1e-5),
    "layer_norm of a sum": on_rows("add_layer_norm", 2, eps=1e-5),
    "scaled_add": on_rows("scaled_add", 2, factor=0.3),
    "scaled": on_rows("scaled_add", 1, y=None, factor=0.3),
    "relu": on_rows("activation", 1, name="relu"),
    "scaled logits": logits(None),
    "rotary": rotate,
    "weigh": weigh,
    "combine": combine,
}
NEARLY: dict[str, Call] = {
    **{name: on_rows("activation", 1, name=name) for name in ACTIVATIONS if name != "relu"},
    "gated_silu": on_pairs("silu"),
    "gated_gelu": on_pairs("gelu_new"),
    "gated_gelu, exact": on_pairs("gelu"),
    "clamped_swiglu": clamped_swiglu,
    "capped logits": logits(2.0),
    "gated combine": combine_gated,
    **{f"route by {score.name}": partial(route, score) for score in Score},
    "convolution": convolve,
    "delta_rule": learn,
    "gated_norm": gated_norm,
    "output_gate": output_gate,
    "selective_scan": scan,
    "grouped_norm": grouped_norm,
}


def results(call: Call, dtype: torch.dtype, width: int, team: Any) -> list[torch.Tensor]:
    """What a case gives by a team; None: that of the compiled operations."""
    found = call(CpuOps(dtype, team), dtype, width)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float32"])
@pytest.mark.parametrize("name", EXACT)
def test_the_same_bits(name: str, dtype: torch.dtype):
    for width in WIDTHS:
        ours, theirs = (results(EXACT[name], dtype, width, team) for team in (None, PythonTeam()))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other) and one.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float32"])
@pytest.mark.parametrize("name", NEARLY)
def test_the_same_but_for_roundings(name: str, dtype: torch.dtype):
    for width in WIDTHS:
        ours, theirs = (results(NEARLY[name], dtype, width, team) for team in (None, PythonTeam()))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=NEAR[one.dtype], atol=4e-6)


def test_every_operation_is_compared():
    """Those of these folders, but for the ones that are compared with what they are made of: see
    test_dispatch.py, test_gather.py, test_decide_rows.py and test_rank_parts.py."""
    team, operations = PythonTeam(computes=False), set()
    for case in (*EXACT.values(), *NEARLY.values()):
        for dtype in DTYPES:
            results(case, dtype, 16, team)
    for folder in ("elementwise", "experts", "states"):
        for module in pkgutil.iter_modules([f"{kernels.cpu.__path__[0]}/{folder}"]):
            found = vars(importlib.import_module(f"kernels.cpu.{folder}.{module.name}")).values()
            for each in found:
                of_both = each if isinstance(each, Operations) else [each]
                operations |= {one.name for one in of_both if isinstance(one, Operation)}
    elsewhere = {
        "experts.dispatch.decide_rows",
        "experts.dispatch.dispatch",
        "elementwise.gather.gather_rows",
        "experts.dispatch.grouped_product",
        "elementwise.rank_parts.add_parts_bfloat16",
        "elementwise.rank_parts.add_parts_float32",
        "elementwise.rank_parts.find_owners",
        "elementwise.rank_parts.join_parts",
    }
    assert operations - team.names == {f"kernels.cpu.{name}" for name in elsewhere}
