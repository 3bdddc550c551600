"""Errors about fields of GenerateRequest, told by the names of the tensors that set them."""

from frontend.errors import ServiceError
from frontend.servicers.open_inference.requests import INPUTS

_NAMES = {tensor.path: name for name, tensor in INPUTS.items() if tensor.path} | {
    "prompt": "text_input",
    "output.logprobs": "return_log_probs",
    "request_id": "id",
    "model": "model_name",
}


def translated(error: ServiceError) -> ServiceError:
    """Returns the error with the tensors' names for the fields."""
    if error.violations:
        error.violations = {_name(path): text for path, text in error.violations.items()}
        error.message = "; ".join(f"{name}: {text}" for name, text in error.violations.items())
    return error


def translated_text(message: str) -> str:
    """Returns an error's text with the tensors' names for the fields."""
    path, colon, rest = message.partition(": ")
    return f"{_name(path)}{colon}{rest}"


def _name(path: str) -> str:
    stem = path
    while stem:
        if stem in _NAMES:
            return _NAMES[stem] + path[len(stem) :]
        stem = stem[: max(stem.rfind("."), stem.rfind("["), 0)]
    return path
