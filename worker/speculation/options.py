"""What a core asks of drafts, checked for the device, and the drafters that follow from it."""

from functools import partial

from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.speculation import METHOD_NAMES
from worker.exactness import Exactness
from worker.grammar.rows import GrammarRows
from worker.speculation.drafter import Drafter, ForcedDrafter
from worker.speculation.lookup import LookupDrafter, SharedLookupDrafter
from worker.speculation.of_ranks import FirstSources, FollowingSources, Tell
from worker.speculation.sources import Sources
from worker.speculation.speculator import Speculator, StateUser
from worker.step.rows import RowTable

_WHAT = "cannot speculate"
_MODELS = {engine_pb2.DRAFT_METHOD_DRAFT: "a draft model", engine_pb2.DRAFT_METHOD_HEADS: "a head"}
_CPU_BATCH, _BATCH = 8, 16
"""Tokens that read the weights once and cost little more than one: on a CPU, and elsewhere."""


def read_speculation(initialize: worker_pb2.Initialize, device: str) -> worker_pb2.Speculation | None:
    """Returns how to draft on a device (cpu, cuda or simulated), where `batch` is never 0; None: not at all.
    Raises StartupError where the device cannot do it."""
    if not initialize.HasField("speculation"):
        return None
    options = worker_pb2.Speculation()
    options.CopyFrom(initialize.speculation)
    if options.method in _MODELS and device != "cpu":
        raise StartupError(
            _WHAT,
            f"--speculate {options.flag}: {_MODELS[options.method]} needs --device cpu",
            "use it, or --speculate lookup",
        )
    if options.method == engine_pb2.DRAFT_METHOD_SIMULATED and device != "simulated":
        raise StartupError(
            _WHAT,
            f"--speculate {options.flag} drafts the tokens of a simulated device, and the device is {device}",
            "use --speculate lookup",
        )
    options.batch = options.batch or (max(_CPU_BATCH, 1 + options.tokens) if device == "cpu" else _BATCH)
    return options


def check_exactness(options: worker_pb2.Speculation | None, exactness: Exactness) -> None:
    """Raises StartupError where computing several positions of a row in one step may change a token."""
    if options is not None and exactness.caveat:
        raise StartupError(
            _WHAT,
            f"--speculate {METHOD_NAMES[options.method]} needs logits that are equal bit for bit:"
            f" {exactness.caveat}",
            "leave it out, or use --dtype bfloat16 on a CPU with AVX2, or a GPU without --fast-matmul",
        )


def make_speculator(
    options: worker_pb2.Speculation | None,
    rows: RowTable,
    grammars: GrammarRows,
    drafter: Drafter | None = None,
    states: StateUser | None = None,
    rank: int = 0,
    tell: Tell | None = None,
) -> Speculator | None:
    """Returns what drafts; None: nothing is drafted.

    drafter: of a method that needs more than the rows. states: see Speculator. rank, tell: of a
    tensor-parallel group, whose rank 0 drafts; tell: None: there is none.
    """
    if options is None:
        return None
    if rank and tell is not None:
        following = partial(FollowingSources, tell=tell)
        return Speculator(options, (), rows, states, following)
    drafters: list[tuple[int, Drafter]] = [(engine_pb2.DRAFT_METHOD_GRAMMAR, ForcedDrafter(grammars))]
    if options.method == engine_pb2.DRAFT_METHOD_LOOKUP:
        drafters.append((options.method, LookupDrafter(rows)))
    if options.shared:
        drafters.append((engine_pb2.DRAFT_METHOD_SHARED, SharedLookupDrafter(rows, options.shared)))
    if drafter is not None:
        drafters.append((options.method, drafter))
    sources = Sources if tell is None else partial(FirstSources, tell=tell)
    return Speculator(options, drafters, rows, states, sources)
