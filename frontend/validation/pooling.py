"""Checks the fields of an EmbedRequest that need no tokenizer. Pure."""

from frontend.errors import InvalidRequest
from frontend.validation.requests import MAX_PROMPTS, NOT_BUILT, Findings, check_prompt
from frontend.validation.rules import MAX_ID_BYTES, Limits, identifier_problem, priority_problem
from pagewire.v1 import pooling_pb2

DTYPES = ("float32", "float16", "bfloat16")
"""Of raw elements."""
MAX_VECTOR_VALUES = 1 << 23
"""Elements of all vectors of one response: 32 MiB of float32."""


def check_embed(request: pooling_pb2.EmbedRequest, limits: Limits, size: int) -> None:
    """Checks a request to embed. size: elements of a vector of the model. Raises InvalidRequest or
    Unsupported, naming the fields."""
    findings, count = Findings(), len(request.inputs)
    if not 1 <= count <= MAX_PROMPTS:
        raise InvalidRequest({"inputs": f"must be 1 to {MAX_PROMPTS}, not {count}"})
    suffix = len(f"#{MAX_PROMPTS}")  # each input is a request with this id and its index
    findings.add("request_id", identifier_problem(request.request_id, MAX_ID_BYTES - suffix))
    findings.add("priority", priority_problem(request.priority, limits))
    findings.add("tenant", identifier_problem(request.tenant))
    findings.walk(request.cache, "cache", "cache", limits)
    if request.HasField("dimensions") and not 1 <= request.dimensions <= size:
        findings.add("dimensions", f"must be 1 to {size}, not {request.dimensions}")
    if request.raw_dtype and request.raw_dtype not in DTYPES:
        findings.add("raw_dtype", f"must be {', '.join(DTYPES)}, or absent")
    if request.adapter:
        findings.unsupported["adapter"] = NOT_BUILT
    if count * (request.dimensions or size) > MAX_VECTOR_VALUES:
        most = MAX_VECTOR_VALUES // (request.dimensions or size)
        findings.add("inputs", f"must be at most {most} with vectors of this size, not {count}")
    for place, prompt in enumerate(request.inputs):
        findings.walk(prompt, f"inputs[{place}]", "prompt", limits)
        check_prompt(prompt, f"inputs[{place}]", findings, may_be_empty=False)
    findings.raise_any()
