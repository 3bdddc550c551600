"""The flag --speculate METHOD[:NAME=VALUE,...]: how tokens are drafted, and how many.

lookup        the tokens that followed the row's last tokens when these occurred before
simulated     the simulated device's own tokens, of which a share is spoiled

tokens=8      most tokens drafted for one row in a step
batch=16      most tokens that decoding rows compute together in a step with drafts
acceptance=70 percent of drafts that are right, of `simulated` alone
"""

from dataclasses import dataclass, fields

METHODS = ("lookup", "simulated")
_RANGES = {"tokens": (1, 64), "batch": (2, 4096), "acceptance": (0, 100)}


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a worker drafts tokens."""

    method: str
    tokens: int = 8
    batch: int = 16
    acceptance: int = 70


def parse_speculation(text: str) -> Speculation | None:
    """Reads the flag; None: it is empty. Raises ValueError, which names what is wrong with it."""
    if not text:
        return None
    method, _, rest = text.partition(":")
    if method not in METHODS:
        raise ValueError(f"{method} is not a method; there are {', '.join(METHODS)}")
    values = dict(_read_option(method, part) for part in rest.split(",") if part)
    return Speculation(method, **values)


def _read_option(method: str, text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    known = [field.name for field in fields(Speculation)[1:]]
    if method != "simulated":
        known.remove("acceptance")
    if name not in known:
        raise ValueError(f"{method} has no option {name}; it has {', '.join(known)}")
    lowest, highest = _RANGES[name]
    if not value.isdecimal() or not lowest <= int(value) <= highest:
        raise ValueError(f"{name} is {value or 'missing'}; use {lowest} to {highest}")
    return name, int(value)
