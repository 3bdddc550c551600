"""The flag --speculate METHOD[:NAME=VALUE,...]: how tokens are drafted, and how many.

lookup        the tokens that followed the row's last tokens when these occurred before
grammar       the tokens that the row's grammar forces; the other methods ask it first
draft:MODEL   the tokens that a smaller model samples, from a folder or a GGUF file
heads:HEAD    the tokens that an EAGLE-3 head samples, which reads the model's hidden states; or those of the
              checkpoint's own layer that predicts one token more
simulated     the simulated device's own tokens, of which a share is spoiled

tokens=7      most tokens drafted for one row in a step, so that it computes 8: no more read the weights once;
              4 of a draft model or a head
batch=16      most tokens that decoding rows compute together in a step with drafts; on a CPU 8, or those of
              one row if these are more
shared=0      tokens of earlier outputs that `lookup` keeps of each tenant, and looks up too
acceptance=70 percent of drafts that are right, of `simulated` alone
"""

from pagewire.internal.v1.worker_pb2 import Speculation

_COMMON = ("tokens", "batch")
OPTIONS = {
    "lookup": (*_COMMON, "shared"),
    "grammar": _COMMON,
    "draft": _COMMON,
    "heads": _COMMON,
    "simulated": (*_COMMON, "acceptance"),
}
"""By method."""
_RANGES = {"tokens": (1, 64), "batch": (2, 4096), "shared": (0, 1 << 20), "acceptance": (0, 100)}
_MODELS = {"draft": "MODEL", "heads": "HEAD"}
"""Methods that name a checkpoint, and what they call it."""
_TOKENS, _MODEL_TOKENS = 7, 4
"""Each token of a draft model costs a step of it."""


def parse_speculation(text: str) -> Speculation | None:
    """Reads the flag; None: it is empty. Raises ValueError, which names what is wrong with it."""
    if not text:
        return None
    method, _, rest = text.partition(":")
    if method not in OPTIONS:
        raise ValueError(f"{method} is not a method; there are {', '.join(OPTIONS)}")
    model = ""
    if method in _MODELS:
        model, _, rest = rest.partition(",")
        if not model:
            raise ValueError(f"{method} needs a checkpoint: {method}:{_MODELS[method]}")
    values = {"tokens": _MODEL_TOKENS if method in _MODELS else _TOKENS, "acceptance": 70}
    values |= dict(_read_option(method, part) for part in rest.split(",") if part)
    return Speculation(flag=text, method=f"DRAFT_METHOD_{method.upper()}", model_path=model, **values)


def _read_option(method: str, text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    known = OPTIONS[method]
    if name not in known:
        raise ValueError(f"{method} has no option {name}; it has {', '.join(known)}")
    lowest, highest = _RANGES[name]
    if not value.isdecimal() or not lowest <= int(value) <= highest:
        raise ValueError(f"{name} is {value or 'missing'}; use {lowest} to {highest}")
    return name, int(value)
