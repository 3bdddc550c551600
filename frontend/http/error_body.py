"""Errors in JSON, in the shape of the OpenAI API: {"error": {"message", "type", "param", "code"}}."""

import math
from typing import Any

from frontend.errors import MAX_TEXT, ServiceError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CODES = {
    "CONTEXT_LENGTH_EXCEEDED": "context_length_exceeded",
    "MODEL_NOT_FOUND": "model_not_found",
    "FEATURE_UNSUPPORTED": "unsupported_parameter",
    "INVALID_FIELD": "invalid_value",
    "TOKEN_MISSING": "invalid_api_key",
    "TOKEN_INVALID": "invalid_api_key",
    "TOKEN_EXPIRED": "invalid_api_key",
}
"""ErrorInfo.reason -> OpenAI's code; any other reason is a code in lower case."""


def error_body(error: ServiceError) -> dict[str, Any]:
    """Returns the JSON body of an error. `param` is the first field that is at fault."""
    status = error.http_status
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    param = next(iter(error.violations), None)
    if param is None and error.resource is not None:
        param = error.resource[0]
    content = {
        "message": error.message[:MAX_TEXT],
        "type": _TYPES.get(status, fallback),
        "param": param,
        "code": _CODES.get(error.reason, error.reason.lower()),
    }
    return {"error": content}


def error_headers(error: ServiceError) -> list[tuple[str, str]]:
    """Returns the headers that say when, or how, to try again."""
    headers = []
    if error.http_status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if error.retry_after is not None:
        headers.append(("retry-after", str(math.ceil(error.retry_after))))
        headers.append(("retry-after-ms", str(round(1000 * error.retry_after))))
    return headers
