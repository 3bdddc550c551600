"""Prompts of embeddings: the field `prompt_embeds` has vLLM's name, and a safetensors file in place of a
pickle, which can run code when it is opened."""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from frontend.errors import InvalidRequest
from pagewire.v1 import prompt_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.fields import list_of, one_of

FIELD = "prompt_embeds"
_FILE = {"type": "string", "contentEncoding": "base64"}
SCHEMA = one_of(_FILE, list_of(_FILE))
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_PICKLES = b"PK\x03\x04", b"\x80"
"""First bytes of what torch.save() writes."""
_MAX_HEADER_BYTES = 1 << 16


def read_prompt_embeds(body: Mapping[str, Any], most: int) -> list[prompt_pb2.Prompt]:
    """Returns the prompts in the field: a file in base64, or a list of up to `most` of them. Their values are
    checked later. Raises InvalidRequest."""
    if body.get("prompt") is not None:
        raise InvalidRequest({FIELD: "cannot be combined with prompt"})
    content = body[FIELD]
    files = content if isinstance(content, list) else [content]
    if not 1 <= len(files) <= most:
        raise InvalidRequest({FIELD: f"must be a file in base64, or a list of 1 to {most} of these"})
    prompts = []
    for place, each in enumerate(files):
        try:
            data = b64decode(values.text(each), validate=True)
            prompts.append(prompt_pb2.Prompt(embeddings=_read_file(data)))
        except ValueError as error:  # also of base64
            where = f"{FIELD}[{place}]" if len(files) > 1 else FIELD
            raise InvalidRequest({where: str(error)}) from None
    return prompts


def _read_file(data: bytes) -> prompt_pb2.Tensor:
    """Returns the only tensor of a safetensors file. Raises ValueError."""
    size = int.from_bytes(data[:8], "little")
    if data[8:9] != b"{" or size > min(_MAX_HEADER_BYTES, len(data) - 8):
        if data.startswith(_PICKLES):
            raise ValueError("is a pickle (torch.save), which is not read: send a safetensors file")
        raise ValueError("is no safetensors file")
    try:
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        (tensor,) = header.values()
        dtype, shape, offsets = _DTYPES[tensor["dtype"]], tensor["shape"], tensor["data_offsets"]
        found = prompt_pb2.Tensor(dtype=dtype, shape=shape, data=data[8 + size :])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"must hold one tensor of {', '.join(_DTYPES)}") from None
    if offsets != [0, len(found.data)]:
        raise ValueError("has other bytes than its header says")
    return found
