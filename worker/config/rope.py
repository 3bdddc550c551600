"""Rotary parameters of config.json, under their current and their older names. Needs no torch."""

import math
from dataclasses import dataclass, replace
from typing import Any

from pagewire.errors import StartupError
from worker.config.hf_config import MOST, WHAT, Fields

TIME, ROW, COLUMN = range(3)
"""Axes of positions of an image's vectors."""
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "divided", "proportional", "longrope")
_KNOWN = frozenset(
    {
        *("rope_theta", "rope_type", "type", "partial_rotary_factor", "factor", "attention_factor"),
        *("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        *("short_factor", "long_factor", "finetuned", "divisors"),
    }
)
_OF_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
"""Of M-RoPE: text has one position for all sections."""
_LENGTH_KINDS = ("dynamic", "longrope")
"""Kinds whose angles depend on the length of the prompt."""


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """How positions become angles. Fields after `rotary_dim` have their defaults if the kind does not use
    them."""

    theta: float
    kind: str  # one of KINDS
    rotary_dim: int  # values of a head that are rotated; those behind them stay as they are
    interleaved: bool = False  # rotates pairs (2 i, 2 i + 1) instead of (i, i + rotary_dim / 2)
    factor: float = 1.0
    original_max_position: int = 0  # context length before scaling
    num_turning: int = 0  # proportional: frequencies that are not 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn, longrope: factor of cos and sin
    truncate: bool = True  # yarn: round the bounds of the ramp
    short_factors: tuple[float, ...] = ()  # longrope, within the original context: divisors [rotary_dim / 2]
    divisors: tuple[float, ...] = ()  # divided: of each frequency [rotary_dim / 2]
    long_factors: tuple[float, ...] = ()  # longrope, beyond it
    axes: tuple[
        int, ...
    ] = ()  # M-RoPE: TIME, ROW or COLUMN turns each frequency [rotary_dim / 2]; (): no matter

    @property
    def depends_on_prompt_len(self) -> bool:
        """True if a token's angle depends on the length of its prompt; see worker.layers.attention.rotary."""
        return self.kind in _LENGTH_KINDS


@dataclass(frozen=True, kw_only=True)
class RopeDefaults:
    """What a family takes for rotary fields that are absent, and what it allows."""

    theta: float = 10_000.0
    partial: float | None = None  # part of a head that is rotated; None: all of it, nothing else is allowed
    interleaved: bool = False
    original_max_position: int | None = None  # None: the context length
    allows_sections: bool = False  # fields may be there that count for images alone (M-RoPE)


LLAMA_ROPE = RopeDefaults()


def read_rope(
    fields: Fields, max_position: int, head_dim: int, defaults: RopeDefaults = LLAMA_ROPE
) -> RopeConfig:
    """Reads the rotary parameters of all layers. max_position: tokens, as config.json says. Raises
    StartupError."""
    return read_rope_object(_rope_object(fields), fields, max_position, head_dim, defaults)


def _rope_object(fields: Fields) -> Fields:
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    if name == "rope_parameters" and fields.has("rope_scaling"):
        raise fields.wrong("rope_scaling", "rope_parameters is there, too: put its fields into that one")
    return fields.object(name)


def read_rope_object(
    rope: Fields, fields: Fields, max_position: int, head_dim: int, defaults: RopeDefaults
) -> RopeConfig:
    """Reads one object of rotary parameters. fields: config.json, where older files have some of them."""
    rope.refuse_unknown(_KNOWN | _OF_IMAGES if defaults.allows_sections else _KNOWN)
    theta = _of_both(rope, fields, "rope_theta").number("rope_theta", defaults.theta, above=1.0)
    rotary_dim = _rotary_dim(rope, fields, head_dim, defaults)
    kind = rope.text("rope_type", rope.text("type", "default"))
    kind = "longrope" if kind == "su" else kind  # its name in the first files
    kind = "default" if kind == "mrope" and defaults.allows_sections else kind  # the same
    common: dict[str, Any] = {
        "theta": theta,
        "kind": kind,
        "rotary_dim": rotary_dim,
        "interleaved": defaults.interleaved,
    }
    if kind == "default":
        if rope.number("factor", 1.0) != 1.0:
            raise rope.wrong("factor", "rope_type must say how it scales positions")
        return RopeConfig(**common)
    if kind == "divided":
        return RopeConfig(**common, divisors=_numbers(rope, "divisors", rotary_dim // 2))
    if kind not in KINDS or kind == "proportional":
        field = "rope_type" if rope.has("rope_type") else "type"
        known = [each for each in KINDS if each != "proportional"]
        raise rope.wrong(field, f"only {', '.join(known[:-1])} and {known[-1]} are supported")
    if kind == "dynamic" and rotary_dim == 2:
        raise rope.wrong("rope_type", "of each head 2 values are rotated, whose angle it cannot change")
    original = max_position
    if kind not in ("linear", "dynamic"):
        name, default = "original_max_position_embeddings", defaults.original_max_position
        original = _of_both(rope, fields, name).integer(name, default or max_position, most=MOST)
    common |= {"original_max_position": original}
    if kind == "longrope":
        return _read_longrope(rope, max_position, common)
    factor = rope.number("factor")
    if factor < 1:
        raise rope.wrong("factor", "must be at least 1")
    common |= {"factor": factor}
    if kind in ("linear", "dynamic"):
        return RopeConfig(**common)
    return _read_yarn(rope, factor, common) if kind == "yarn" else _read_llama3(rope, common)


def read_proportional(rope: Fields, head_dim: int, theta: float, partial: float) -> RopeConfig:
    """Reads an object of the kind in which all pairs of a head are rotated, those of high numbers by 0.
    theta, partial: of absent fields. Raises StartupError."""
    rope.refuse_unknown(("rope_type", "rope_theta", "partial_rotary_factor", "factor"))
    if head_dim % 2 or head_dim < 4:
        raise StartupError(WHAT, f"config.json: a head size of {head_dim} cannot be halved for rotation")
    part = rope.number("partial_rotary_factor", partial)
    if part > 1:
        raise rope.wrong("partial_rotary_factor", "must be at most 1")
    return RopeConfig(
        theta=rope.number("rope_theta", theta, above=1.0),
        kind="proportional",
        rotary_dim=head_dim,
        factor=rope.number("factor", 1.0),
        num_turning=int(part * head_dim // 2),
    )


@dataclass(frozen=True)
class Sections:
    """How many frequencies time, row and column of an image turn (M-RoPE), where config.json does not say it.

    interleaved: they take turns, from the highest frequency on, and time has those that are left; else each
    has its own in one piece.
    """

    sizes: tuple[int, int, int]
    interleaved: bool

    def read(self, fields: Fields, rope: RopeConfig) -> RopeConfig:
        """Returns the rotation of a model whose images have such positions. fields: config.json. Raises
        StartupError."""
        given, name, count = _rope_object(fields), "mrope_section", rope.rotary_dim // 2
        if not (given.has("rope_theta") or fields.has("rope_theta")):
            raise fields.wrong("rope_theta", "it must be said where images have positions of three axes")
        sizes = given.integers(name, least=0) if given.has(name) else self.sizes
        if len(sizes) != len(self.sizes) or sum(sizes) != count:
            raise given.wrong(name, f"time, row and column must have {count} frequencies in all")
        given.expect("mrope_interleaved", self.interleaved, f"it is {str(self.interleaved).lower()} here")
        if rope.depends_on_prompt_len:
            raise given.wrong("rope_type", "angles that depend on a prompt's length are not known for images")
        return replace(rope, axes=self._axes(sizes, count))

    def _axes(self, sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
        if not self.interleaved:
            return tuple(axis for axis, size in enumerate(sizes) for _ in range(size))
        axes = (number % len(sizes) for number in range(count))
        return tuple(axis if number < 3 * sizes[axis] else TIME for number, axis in enumerate(axes))


def scaled_max_position(rope: RopeConfig, max_position: int) -> int:
    """Returns the context length with scaling. llama3 and longrope checkpoints state the scaled length, the
    others do not."""
    length = max_position
    if rope.kind in ("linear", "dynamic"):
        length = int(max_position * rope.factor)
    elif rope.kind == "yarn":
        length = max(max_position, int(rope.original_max_position * rope.factor))
    if length > MOST:
        raise StartupError(WHAT, f"config.json: a factor of {rope.factor:g} makes the context too long")
    return length


def _of_both(rope: Fields, fields: Fields, name: str) -> Fields:
    """Returns which of the two has a field that either may have. Raises StartupError where they differ."""
    if not rope.has(name):
        return fields
    fields.expect(name, rope.value(name), f"the rotary parameters say {rope.value(name)}")
    return rope


def _rotary_dim(rope: Fields, fields: Fields, head_dim: int, defaults: RopeDefaults) -> int:
    """Returns how many values of a head are rotated."""
    name, whole = "partial_rotary_factor", 1.0
    holder = rope if defaults.partial is None else _of_both(rope, fields, name)
    part = holder.number(name, whole if defaults.partial is None else defaults.partial)
    if part != whole and defaults.partial is None:
        raise rope.wrong(name, "only 1.0 is supported")
    if part > whole:
        raise holder.wrong(name, "must be at most 1")
    rotary_dim = int(head_dim * part)
    if rotary_dim % 2 or head_dim % 2 or head_dim < 4 or rotary_dim < 2:
        of = "" if part == whole else f", of which {rotary_dim} values are rotated"
        raise StartupError(
            WHAT, f"config.json: the head size is {head_dim}{of}, which rotary positions cannot halve"
        )
    return rotary_dim


def _read_llama3(rope: Fields, common: dict[str, Any]) -> RopeConfig:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high < low:
        raise rope.wrong("high_freq_factor", "must be at least low_freq_factor")
    return RopeConfig(**common, low_freq_factor=low, high_freq_factor=high)


def _read_yarn(rope: Fields, factor: float, common: dict[str, Any]) -> RopeConfig:
    return RopeConfig(
        **common,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(rope, factor),
        truncate=rope.boolean("truncate", True),
    )


def _read_longrope(rope: Fields, max_position: int, common: dict[str, Any]) -> RopeConfig:
    original, rotary_dim = common["original_max_position"], common["rotary_dim"]
    factor = rope.number("factor", max_position / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return RopeConfig(
        **common,
        factor=factor,
        attention_factor=rope.number("attention_factor", grown),
        short_factors=_numbers(rope, "short_factor", rotary_dim // 2),
        long_factors=_numbers(rope, "long_factor", rotary_dim // 2),
    )


def _numbers(rope: Fields, name: str, count: int) -> tuple[float, ...]:
    """Returns a number for each frequency."""
    numbers = rope.numbers(name)
    if len(numbers) != count:
        raise rope.wrong(name, f"must have {count} numbers, one for each frequency")
    return numbers


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor")

    def growth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.has("mscale") and rope.has("mscale_all_dim"):
        return growth(rope.number("mscale")) / growth(rope.number("mscale_all_dim"))
    return growth(1.0)
