"""Names the option whose number does not fit its field, which protobuf's own errors do not."""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pagewire.v1 import generation_pb2

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_UINT32 = _RANGES[FieldDescriptor.CPPTYPE_UINT32]
_COUNTS = ("logprobs", "prompt_logprobs", "repetition", "logit_bias")
"""Options made of uint32 whose messages have other fields."""


def _fields() -> dict[str, Any]:
    """Returns the descriptor of the field of each option that is one."""
    parts = (
        generation_pb2.GenerateRequest,
        generation_pb2.SamplingParams,
        generation_pb2.StoppingCriteria,
        generation_pb2.OutputOptions,
        generation_pb2.RoutingHints,
        generation_pb2.Speculation,
    )
    fields = {field.name: field for part in parts for field in part.DESCRIPTOR.fields}
    fields["reasoning_budget"] = generation_pb2.ReasoningOptions.DESCRIPTOR.fields_by_name["budget"]
    return fields


_FIELDS = _fields()


def check_numbers(options: Mapping[str, Any]) -> None:
    """Raises ValueError or TypeError, naming it, for the first option with a number that its field cannot
    hold. Options without numbers are ignored."""
    for name, value in options.items():
        if value is None:
            continue
        if name in _COUNTS:
            if isinstance(value, int | tuple | list | Mapping):
                _check(name, value, _UINT32)
            continue
        field = _FIELDS.get(name)
        if field is None:
            continue
        if field.cpp_type in _RANGES:
            _check(name, value, _RANGES[field.cpp_type])
        elif field.cpp_type in _FLOATS and not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {value!r}")


def _check(name: str, value: Any, limits: tuple[int, int]) -> None:
    least, most = limits
    for number in value if isinstance(value, Iterable) and not isinstance(value, str) else [value]:
        if not hasattr(number, "__index__"):
            raise TypeError(f"{name} must be a whole number, not {number!r}")
        if not least <= number <= most:
            raise ValueError(f"{name} must be {least} to {most}, not {number}")
