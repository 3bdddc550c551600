"""GET /openapi.json: the OpenAPI document, made of the tables by which requests are read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pagewire import __version__

Json = dict[str, Any]

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field at fault"},
                "code": {"type": "string"},
            },
        }
    },
}
_MESSAGE_ERROR: Json = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What the document says of a path.

    name:       unique among all.
    body:       JSON schema of the request; None: there is no body.
    media_type: of the answer.
    is_public:  needs no token.
    """

    method: str
    path: str
    name: str
    summary: str
    body: Json | None = None
    media_type: str = "application/json"
    is_public: bool = False


OF_PORT = (
    Operation("GET", "/health", "health", "200 when requests are accepted, else 503", is_public=True),
    Operation("GET", "/ping", "ping", "As /health", is_public=True),
    Operation("GET", "/metrics", "metrics", "Metrics for Prometheus", media_type="text/plain"),
)
"""What the port serves besides its plug-ins."""


def openapi_document(operations: Iterable[Operation]) -> Json:
    """Returns the document, of version 3.1."""
    paths: dict[str, Json] = {}
    schemas: Json = {"Error": _ERROR, "MessageError": _MESSAGE_ERROR}
    for each in operations:
        path = _PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pagewire", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(each: Operation, path: str, schemas: Json) -> Json:
    """Returns an operation, and adds the schema of its request."""
    error = "MessageError" if path.startswith("/v1/messages") else "Error"
    streams = each.body is not None and "stream" in each.body.get("properties", ())
    media_types = [each.media_type, *(["text/event-stream"] if streams else [])]
    described: Json = {
        "operationId": each.name,
        "summary": each.summary,
        "responses": {
            "200": {"description": "The answer", "content": {name: {} for name in media_types}},
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": _reference(error)}},
            },
        },
        "security": [{}] if each.is_public else [{}, {"bearer": []}, {"key": []}],
    }
    if names := _PARAMETER.findall(each.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if each.body is not None:
        title = "".join(word.capitalize() for word in each.name.split("_")) + "Request"
        schemas[title] = each.body
        content = {"application/json": {"schema": _reference(title)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
