"""What a worker is told about speculation, read and checked."""

from collections.abc import Sequence

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.speculation import Speculation, parse_speculation
from worker.exactness import Exactness
from worker.grammar.rows import GrammarRows
from worker.speculation.drafter import Drafter
from worker.speculation.forced import ForcedDrafter
from worker.speculation.lookup import LookupDrafter
from worker.speculation.shared_lookup import SharedLookupDrafter
from worker.speculation.speculator import BlockUser, Speculator, StateUser
from worker.step.plan_reader import RowFeature
from worker.step.rows import RowTable

_WHAT = "cannot speculate"
_METHODS = {
    "draft": worker_pb2.DRAFT_METHOD_DRAFT,
    "heads": worker_pb2.DRAFT_METHOD_HEADS,
    "simulated": worker_pb2.DRAFT_METHOD_SIMULATED,
}
_MODELS = {"draft": "a draft model", "heads": "a head"}


def read_speculation(text: str, device: str) -> Speculation | None:
    """Reads Initialize.speculation; None: it is empty. Raises StartupError where the device cannot do it."""
    try:
        options = parse_speculation(text)
    except ValueError as error:
        raise StartupError(_WHAT, f"--speculate {text}: {error}", "correct it, or leave it out") from error
    if options is None:
        return None
    if options.method in _MODELS and device != "cpu":
        raise StartupError(
            _WHAT,
            f"--speculate {text}: {_MODELS[options.method]} needs --device cpu",
            "use it, or --speculate lookup",
        )
    if options.method == "simulated" and device != "simulated":
        raise StartupError(
            _WHAT,
            f"--speculate {text} drafts the tokens of a simulated device, and the device is {device}",
            "use --speculate lookup",
        )
    return options.on(device)


def check_exactness(options: Speculation | None, exactness: Exactness) -> None:
    """Raises StartupError where computing several positions of a row in one step may change a token."""
    if options is not None and exactness.caveat:
        raise StartupError(
            _WHAT,
            f"--speculate {options.method} needs logits that are equal bit for bit: {exactness.caveat}",
            "leave it out, or use --dtype bfloat16 on a CPU with AVX2, or a GPU without --fast-matmul",
        )


def make_speculator(
    options: Speculation | None,
    rows: RowTable,
    grammars: GrammarRows,
    drafter: Drafter | None = None,
    features: Sequence[RowFeature] = (),
    blocks: BlockUser | None = None,
    states: StateUser | None = None,
) -> Speculator | None:
    """Returns what drafts; None: nothing is drafted.

    drafter: of a method that needs more than the rows. features, blocks, states: see Speculator.
    """
    if options is None:
        return None
    drafters: list[tuple[int, Drafter]] = [(worker_pb2.DRAFT_METHOD_GRAMMAR, ForcedDrafter(grammars))]
    if options.method == "lookup":
        drafters.append((worker_pb2.DRAFT_METHOD_LOOKUP, LookupDrafter(rows)))
    if options.shared:
        shared = SharedLookupDrafter(rows, options.shared)
        drafters.append((worker_pb2.DRAFT_METHOD_SHARED, shared))
        features = (*features, shared)
    if drafter is not None:
        drafters.append((_METHODS[options.method], drafter))
    return Speculator(options, drafters, rows, features, blocks, states)
