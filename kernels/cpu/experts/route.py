"""kernels.ops.experts.dispatch, a token at a time: its bits depend on its own logits alone. Functions are as
exact as float32 (kernels.cpu.isa.exp), and sums go from the first expert to the last."""

from math import inf

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32
from kernels.cpu.experts.records import RouteRecord
from kernels.cpu.isa.exp import precise_exp
from kernels.cpu.isa.simd import load_f32, load_first_f32, store_f32, store_first_f32
from kernels.cpu.isa.vectors import read_f32, read_i64, write_i64
from kernels.ops.experts.routing import Score

LANES = 16
SOFTMAX, SIGMOID = Score.SOFTMAX.value, Score.SIGMOID.value
SOFTMAX_OF_CHOSEN, SPARSE_MIXER = Score.SOFTMAX_OF_CHOSEN.value, Score.SPARSE_MIXER.value
SIGMOID_OF_CHOSEN = Score.SIGMOID_OF_CHOSEN.value


def scratch_bytes(num_experts: int) -> int:
    """For scores, what chooses, and one more number per expert, padded to whole vectors."""
    return 3 * padded_bytes(num_experts)


def padded_bytes(count: int) -> int:
    """Of so many float32, in whole vectors."""
    return (count + LANES - 1) // LANES * 4 * LANES


def _write_f32(at: int, value: float) -> None:
    store_first_f32(at, f32x16(value), 1)


def _first_largest(x: int, count: int) -> int:
    """The first place of the largest of so many float32; 0 where all are -inf or NaN."""
    most, place = -inf, 0
    for i in range(count):
        value = read_f32(x + 4 * i)
        if value > most:
            most, place = value, i
    return place


def _exponentials(x: int, out: int, count: int, most: float) -> float:
    """out = e ** (x - most), of which it returns the sum."""
    for i in range(0, count, LANES):
        part = load_first_f32(x + 4 * i, min(LANES, count - i))
        store_f32(out + 4 * i, precise_exp(part - f32x16(most)))
    total = read_f32(out)
    for i in range(1, count):
        total += read_f32(out + 4 * i)
    return total


def _divide(x: int, count: int, divisor: float) -> None:
    """In place; what follows them up to a whole vector changes too."""
    for i in range(0, count, LANES):
        store_f32(x + 4 * i, load_f32(x + 4 * i) / f32x16(divisor))


def _scores(logits: int, scores: int, count: int, score: int) -> None:
    """Of one token; see kernels.ops.experts.routing."""
    if score == SOFTMAX:
        most = read_f32(logits + 4 * _first_largest(logits, count))
        _divide(scores, count, _exponentials(logits, scores, count, most))
        return
    for i in range(0, count, LANES):
        part = load_first_f32(logits + 4 * i, min(LANES, count - i))
        if score == SIGMOID:
            store_f32(scores + 4 * i, FLOAT32.times_sigmoid(f32x16(1.0), part))
        else:
            store_f32(scores + 4 * i, part)


def _keep_best_groups(record: RouteRecord, choice: int, best: int) -> None:
    """Makes -inf of what the experts of other groups are chosen by. best: room for a number per group."""
    groups, size = record.groups, record.num_experts // record.groups
    for group in range(groups):
        first = choice + 4 * size * group
        place = _first_largest(first, size)
        total = read_f32(first + 4 * place)
        if record.group_best > 1:
            second, any_second = total, 0
            for i in range(size):
                value = read_f32(first + 4 * i)
                if i != place and (any_second == 0 or value > second):
                    second, any_second = value, 1
            total += second
        _write_f32(best + 4 * group, total)
    for group in range(groups):
        # It is kept if fewer than top_groups groups are better, or equal and before it.
        own, better = read_f32(best + 4 * group), 0
        for other in range(groups):
            value = read_f32(best + 4 * other)
            if value > own or (value == own and other < group):
                better += 1
        if better >= record.top_groups:
            for i in range(size * group, size * group + size):
                _write_f32(choice + 4 * i, -inf)


def _mixed_weight(record: RouteRecord, logits: int, left: int, room: int, place: int) -> float:
    """The weight of a chosen expert; see Score.SPARSE_MIXER. left: the logits, -inf where an expert was
    chosen before. room: for a number per expert."""
    count, most = record.num_experts, read_f32(left + 4 * place)
    for i in range(count):
        value, own = read_f32(left + 4 * i), abs(read_f32(logits + 4 * i))
        if (most - value) / max(own, most) > record.tolerance:
            _write_f32(room + 4 * i, -inf)
        else:
            _write_f32(room + 4 * i, value)
    return 1.0 / _exponentials(room, room, count, most)


def _route_token(record: RouteRecord, logits: int, weights: int, experts: int, scratch: int) -> None:
    """Of one token. Addresses."""
    count, top_k, score = record.num_experts, record.top_k, record.score
    scores, choice, room = scratch, scratch + padded_bytes(count), scratch + 2 * padded_bytes(count)
    _scores(logits, scores, count, score)
    for i in range(0, count, LANES):
        part = load_f32(scores + 4 * i)
        if record.correction:
            part = part + load_first_f32(record.correction + 4 * i, min(LANES, count - i))
        store_f32(choice + 4 * i, part)
    if record.groups > 1:
        _keep_best_groups(record, choice, room)
    for j in range(top_k):
        place = _first_largest(choice, count)
        write_i64(experts + 8 * j, place)
        if score == SPARSE_MIXER:
            _write_f32(weights + 4 * j, _mixed_weight(record, logits, choice, room, place))
        else:
            _write_f32(weights + 4 * j, read_f32(scores + 4 * place))
        _write_f32(choice + 4 * place, -inf)


def _finish_weights(record: RouteRecord, weights: int, room: int) -> None:
    """Softmax over the chosen experts or sigmoids of them, normalization and factor, where there are any.
    room: for the weights, in whole vectors."""
    top_k = record.top_k
    for i in range(0, top_k, LANES):
        store_f32(room + 4 * i, load_first_f32(weights + 4 * i, min(LANES, top_k - i)))
    if record.score == SIGMOID_OF_CHOSEN:
        _scores(room, room, top_k, SIGMOID)
    if record.score == SOFTMAX_OF_CHOSEN:
        _divide(room, top_k, _exponentials(room, room, top_k, read_f32(room)))
    if record.normalized:
        total = read_f32(room)
        for j in range(1, top_k):
            total += read_f32(room + 4 * j)
        _divide(room, top_k, total + record.least_sum)
    for i in range(0, top_k, LANES):
        scaled = load_f32(room + 4 * i) * record.scale
        store_first_f32(weights + 4 * i, scaled, min(LANES, top_k - i))


@operation
def route(record: RouteRecord, first: int, count: int, thread: int) -> None:
    """Tokens first .. first + count - 1."""
    scratch = read_i64(record.scratch + 8 * thread)
    for row in range(first, first + count):
        logits, pair = record.logits + 4 * record.num_experts * row, record.top_k * row
        weights = record.weights + 4 * pair
        _route_token(record, logits, weights, record.experts + 8 * pair, scratch)
        _finish_weights(record, weights, scratch)
