"""JSON within requests and bodies."""

import json
from typing import Any

from frontend.errors import InvalidRequest

MAX_VALUES = 1 << 20
"""JSON values in an object, by what separates them: what takes longer to parse counts more. It takes 0.2 s at
most; keys that are all different are the slowest."""
MAX_NESTING = 256
"""Objects and lists within one another: what reads them takes two frames of Python's stack for each."""
_WEIGHTS = {",": 1, "[": 2, "{": 2, ":": 4}


def num_values(text: str) -> int:
    """Returns about how many values a JSON text has, those that take long to parse counting more."""
    return sum(weight * text.count(sign) for sign, weight in _WEIGHTS.items())


def _is_deeper(value: Any, most: int) -> bool:
    """Returns whether a JSON value has more than `most` objects and lists within one another."""
    level = [value]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return False
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
    return True


def read_json(text: str, path: str) -> Any:
    """Returns a JSON document. Raises InvalidRequest, naming `path` and not quoting the text. Takes time in
    proportion to the text, within MAX_VALUES."""
    if num_values(text) > MAX_VALUES:
        raise InvalidRequest({path: f"must have at most {MAX_VALUES} values, a key counting as four"})
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if text.count("{") + text.count("[") > MAX_NESTING and _is_deeper(value, MAX_NESTING):
            raise RecursionError
    except RecursionError:
        raise InvalidRequest({path: "is nested too deeply"}) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest({path: f"is not JSON: {error.msg} at {where}"}) from None
    except _NotFinite as error:
        raise InvalidRequest({path: f"is not JSON: {error} is no JSON number"}) from None
    except ValueError:  # of int(), with advice for programmers
        raise InvalidRequest({path: "has an integer of too many digits"}) from None
    return value


def read_object(text: str, path: str) -> dict[str, Any]:
    """Returns a JSON object. Raises InvalidRequest, as read_json() does."""
    value = read_json(text, path)
    if not isinstance(value, dict):
        raise InvalidRequest({path: "must be a JSON object"})
    return value


class _NotFinite(ValueError):
    """NaN or an infinity."""


def _refuse_constant(name: str) -> None:
    raise _NotFinite(name)
