"""Places tensors of all experts, as peft writes them for its target parameters.

    A [N * r, in]     the rows of one expert after those of another
    B [out, r * N]    the experts of one column after those of another

N experts of rank r. in and out are those of the parameter [N, out, in], or, as peft before 0.19 has it, and
later versions where the parameter is [N, in, out] and its module does not say so, the other way round: then A
is B's transpose, and B is A's. Shapes say which, and which of a module's parameters a tensor belongs to:
names do not.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from worker.adapters.adapter import AdapterError
from worker.adapters.deltas import Deltas, Pair
from worker.layers.targets import StackedTarget, TargetModules


class _Match(NamedTuple):
    parameter: str
    target: StackedTarget
    is_turned: bool  # A and B are transposed


def place_stacked(pairs: Sequence[Pair], modules: TargetModules, deltas: Deltas) -> None:
    """Adds the deltas of all experts. pairs: of modules among modules.stacked. Raises AdapterError."""
    found = [(pair, _matches(pair, modules.stacked[modules.normal_name(pair.module)])) for pair in pairs]
    ways = {True, False}
    for pair, matches in found:
        ways &= {match.is_turned for match in matches}
        if not ways:
            raise AdapterError(f"tensor {pair.a[0]} and others have inputs and outputs the other way round")
    if found and len(ways) > 1:
        raise AdapterError(
            f"tensor {found[0][0].a[0]} has shape {list(found[0][0].a[1].shape)}, which does not say whether "
            "peft has taken inputs for outputs, as before 0.19: train gate_up_proj and down_proj together"
        )
    for pair, matches in found:
        (match,) = (match for match in matches if match.is_turned in ways)
        _place(pair, match, deltas)


def _matches(pair: Pair, parameters: Mapping[str, StackedTarget]) -> list[_Match]:
    """Returns the parameters whose shape a pair has. Raises AdapterError where none has it."""
    a, b = pair.a[1].shape, pair.b[1].shape
    matches, expected = list[_Match](), list[str]()
    for name, target in parameters.items():
        (outputs, inputs), experts = target.shape, len(target.experts)
        for is_turned, sizes in ((False, (inputs, outputs)), (True, (outputs, inputs))):
            if a[1:] == sizes[:1] and b == (sizes[1], a[0]) and a[0] % experts == 0:
                matches.append(_Match(name, target, is_turned))
        expected.append(f"{name}: [{experts} * r, {inputs}] and [{outputs}, r * {experts}]")
    if not matches:
        raise AdapterError(
            f"tensors {pair.a[0]} and {pair.b[0]} have shapes {list(a)} and {list(b)}, which are those of no "
            f"parameter of {pair.module}, with {experts} experts of rank r ({'; '.join(expected)})"
        )
    return matches


def _place(pair: Pair, match: _Match, deltas: Deltas) -> None:
    """Adds the deltas of one parameter."""
    experts, name = match.target.experts, f"{pair.module}.{match.parameter}"
    found = len(pair.a[1]) // len(experts)
    rank = deltas.rank_of(pair, name, found)
    if rank != found:
        raise AdapterError(
            f"tensor {pair.a[0]} has shape {list(pair.a[1].shape)}, rank {found} of each of {len(experts)} "
            f"experts, not {rank}"
        )
    a = pair.a[1].view(len(experts), rank, -1)
    b = pair.b[1].view(-1, rank, len(experts)).permute(2, 0, 1)
    if match.is_turned:
        a, b = b.transpose(1, 2), a.transpose(1, 2)
    for targets, a_of_one, b_of_one in zip(experts, a, b, strict=True):
        deltas.add(targets, pair, name, a_of_one.contiguous(), b_of_one)
