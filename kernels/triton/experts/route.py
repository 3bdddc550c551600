"""kernels.ops.experts.dispatch on CUDA: one program per token, all of its experts in registers.

logits: [T, N] float32; correction: [N] float32 or None. Weights [T, k] float32, experts [T, k] int64, the
best one first; of equal ones that with the lowest number. Scores stand in a tile of groups by members, each
padded to a power of two; without groups all experts are one. An expert's score and its number are one
integer, so that a maximum finds both, and no two are equal. A token's choice depends on its own logits alone.

Bytes moved: 4 * N read and 12 * k written per token: the launch is what it costs. Speed: not yet measured on
a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.experts.routing import Routing, Score
from kernels.triton.requirements import next_power_of_2
from kernels.triton.sampling.candidates import sort_key

NUMBERS = 8192
"""A power of two above the number of any expert."""
SOFTMAX = tl.constexpr(Score.SOFTMAX.value)
SIGMOID = tl.constexpr(Score.SIGMOID.value)
SOFTMAX_OF_CHOSEN = tl.constexpr(Score.SOFTMAX_OF_CHOSEN.value)
SPARSE_MIXER = tl.constexpr(Score.SPARSE_MIXER.value)
SIGMOID_OF_CHOSEN = tl.constexpr(Score.SIGMOID_OF_CHOSEN.value)


@triton.jit
def _largest(x):
    """Returns the largest of a tile."""
    return tl.max(tl.max(x, 1), 0)


@triton.jit
def _sum(x):
    """Returns the sum of a tile."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def _softmax(x, inside):
    """Returns softmax of the values that are inside, 0 for others. x, inside: tiles."""
    top = _largest(tl.where(inside, x, -float("inf")))
    e = tl.where(inside, tl.exp(x - top), 0.0)
    return e / _sum(e)


@triton.jit
def _of_best_groups(
    ranked, choice, group, TOP_GROUPS: tl.constexpr, BEST: tl.constexpr, NUMBERS: tl.constexpr
):
    """Returns ranked with -1 for the experts of other groups. ranked, choice: [groups, members], -1 and -inf
    where there is none; group: [groups] numbers of those that there are, -1 for others."""
    total = tl.max(choice, 1)
    if BEST == 2:
        first = tl.max(ranked, 1)
        total += tl.max(tl.where(ranked == first[:, None], -float("inf"), choice), 1)
    places = tl.where(group >= 0, sort_key(total) * NUMBERS + (NUMBERS - 1 - group), -1)
    kept = group < -1
    for _ in range(TOP_GROUPS):
        best = tl.max(places, 0)
        kept = kept | (places == best)
        places = tl.where(places == best, -1, places)
    return tl.where(kept[:, None], ranked, -1)


@triton.jit
def _mixed(left, logit, chosen_here, score, inside, tolerance):
    """Returns the weight of a chosen expert by SPARSE_MIXER. left: logits of those not chosen before."""
    size = tl.maximum(tl.abs(logit), score)
    near = inside & ~((score - left) / size > tolerance)
    return _sum(tl.where(chosen_here, _softmax(left, near), 0.0))


@triton.jit
def _route_kernel(
    logits,  # [T, N]
    correction,  # [N], or None
    weights,  # [T, k]
    experts,  # [T, k]
    least_sum,
    scale,
    tolerance,
    COUNT: tl.constexpr,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BEST: tl.constexpr,
    NORMALIZED: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    MEMBER_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    SIZE: tl.constexpr = COUNT // GROUPS
    group, member = tl.arange(0, GROUP_TILE), tl.arange(0, MEMBER_TILE)
    number = group[:, None] * SIZE + member[None, :]
    inside = (group < GROUPS)[:, None] & (member < SIZE)[None, :]
    logit = tl.load(logits + token * COUNT + number, mask=inside, other=-float("inf"))
    score = logit
    if SCORE == SOFTMAX:
        score = _softmax(logit, inside)
    elif SCORE == SIGMOID:
        score = 1 / (1 + tl.exp(-logit))
    choice = score
    if correction is not None:
        choice += tl.load(correction + number, mask=inside, other=0.0)
    choice = tl.where(inside, choice, -float("inf"))
    ranked = tl.where(inside, sort_key(choice) * NUMBERS + (NUMBERS - 1 - number), -1)
    if GROUPS > 1:
        real = tl.where(group < GROUPS, group, -1)
        ranked = _of_best_groups(ranked, choice, real, TOP_GROUPS, BEST, NUMBERS)
    place = tl.arange(0, K_TILE)
    chosen, weight, left = tl.zeros([K_TILE], tl.int64), tl.zeros([K_TILE], tl.float32), logit
    for j in range(TOP_K):
        best = _largest(ranked)
        here = ranked == best
        value = _sum(tl.where(here, score, 0.0))
        if SCORE == SPARSE_MIXER:
            value = _mixed(left, logit, here, value, inside, tolerance)
            left = tl.where(here, -float("inf"), left)
        chosen = tl.where(place == j, NUMBERS - 1 - best % NUMBERS, chosen)
        weight = tl.where(place == j, value, weight)
        ranked = tl.where(here, -1, ranked)
    there = place < TOP_K
    if SCORE == SOFTMAX_OF_CHOSEN:
        e = tl.where(there, tl.exp(weight - tl.max(tl.where(there, weight, -float("inf")), 0)), 0.0)
        weight = e / tl.sum(e, 0)
    elif SCORE == SIGMOID_OF_CHOSEN:
        weight = 1 / (1 + tl.exp(-weight))
    if NORMALIZED:
        weight /= tl.sum(tl.where(there, weight, 0.0), 0) + least_sum
    tl.store(weights + token * TOP_K + place, weight * scale, mask=there)
    tl.store(experts + token * TOP_K + place, chosen, mask=there)


def route(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns weights [T, k] float32 and experts [T, k] int64."""
    tokens, count = logits.shape
    assert logits.is_contiguous() and logits.dtype == torch.float32 and count < NUMBERS
    assert correction is None or correction.is_contiguous()
    weights = torch.empty((tokens, routing.top_k), dtype=torch.float32, device=logits.device)
    experts = torch.empty((tokens, routing.top_k), dtype=torch.int64, device=logits.device)
    groups = next_power_of_2(routing.groups)
    members = next_power_of_2(count // routing.groups)
    if tokens:
        _route_kernel[(tokens,)](
            logits,
            correction,
            weights,
            experts,
            routing.least_sum,
            routing.scale,
            routing.tolerance,
            COUNT=count,
            TOP_K=routing.top_k,
            SCORE=routing.score.value,
            GROUPS=routing.groups,
            TOP_GROUPS=routing.top_groups,
            BEST=routing.group_best,
            NORMALIZED=routing.normalized,
            GROUP_TILE=groups,
            MEMBER_TILE=members,
            K_TILE=next_power_of_2(routing.top_k),
            NUMBERS=NUMBERS,
            num_warps=min(8, max(1, groups * members // 256)),
        )
    return weights, experts
