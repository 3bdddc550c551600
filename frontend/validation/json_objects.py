"""JSON objects within requests and bodies."""

import json
from typing import Any

from frontend.errors import InvalidRequest

MAX_VALUES = 1 << 20
"""JSON values in an object, by what separates them: what takes longer to parse counts more. It takes 0.2 s at
most; keys that are all different are the slowest."""
_WEIGHTS = {",": 1, "[": 2, "{": 2, ":": 4}


def read_object(text: str, path: str) -> dict[str, Any]:
    """Returns a JSON object. Raises InvalidRequest, naming `path` and not quoting the text. Takes time in
    proportion to the text, within MAX_VALUES."""
    if sum(weight * text.count(sign) for sign, weight in _WEIGHTS.items()) > MAX_VALUES:
        raise InvalidRequest({path: f"must have at most {MAX_VALUES} values, a key counting as four"})
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidRequest({path: "is nested too deeply"}) from None
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest({path: f"is not JSON{where}"}) from None
    if not isinstance(value, dict):
        raise InvalidRequest({path: "must be a JSON object"})
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are no JSON
