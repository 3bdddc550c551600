"""What a worker is told about speculation, read and checked."""

from pagewire.errors import StartupError
from pagewire.speculation import Speculation, parse_speculation
from worker.exactness import Exactness
from worker.speculation.lookup import LookupDrafter
from worker.speculation.speculator import Speculator
from worker.step.rows import RowTable

_WHAT = "cannot speculate"


def read_speculation(text: str, device: str) -> Speculation | None:
    """Reads Initialize.speculation; None: it is empty. Raises StartupError where the device cannot do it."""
    try:
        options = parse_speculation(text)
    except ValueError as error:
        raise StartupError(_WHAT, f"--speculate {text}: {error}", "correct it, or leave it out") from error
    if options is None:
        return None
    if device == "cuda":
        raise StartupError(
            _WHAT,
            f"--speculate {text}: drafts are not built for CUDA devices yet",
            "leave it out, or use --device cpu",
        )
    if options.method == "simulated" and device != "simulated":
        raise StartupError(
            _WHAT,
            f"--speculate {text} drafts the tokens of a simulated device, and the device is {device}",
            "use --speculate lookup",
        )
    return options


def check_exactness(options: Speculation | None, exactness: Exactness) -> None:
    """Raises StartupError where computing several positions of a row in one step may change a token."""
    if options is not None and exactness.caveat:
        raise StartupError(
            _WHAT,
            f"--speculate {options.method} needs logits that are equal bit for bit: {exactness.caveat}",
            "leave it out, or use --dtype bfloat16 on a CPU with AVX2",
        )


def lookup_speculator(options: Speculation | None, rows: RowTable) -> Speculator | None:
    """Returns what drafts by looking up; None: nothing is drafted."""
    return None if options is None else Speculator(options, LookupDrafter(rows), rows)
