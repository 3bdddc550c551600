"""Structured output: which fields go together. Its text is judged by frontend.grammar. Pure."""

from collections.abc import Iterator

from pagewire.grammar_limits import MAX_GRAMMAR_BYTES
from pagewire.v1 import generation_pb2

FORMATS = "json_object, json_schema, regex, choice, grammar or structural_tag"
WITHOUT = "cannot be combined with structured_output"


def contradictions(request: generation_pb2.GenerateRequest) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for a form that is not complete, and for fields that cannot be combined."""
    if not request.HasField("structured_output"):
        return
    form = request.structured_output
    kind = form.WhichOneof("format")
    if kind is None:
        yield "structured_output", f"is required to have one of {FORMATS}"
    elif kind == "choice" and not form.choice.values:
        yield "structured_output.choice.values", "must not be empty"
    elif kind == "choice" and sum(len(value.encode()) for value in form.choice.values) > MAX_GRAMMAR_BYTES:
        yield "structured_output.choice.values", f"must be at most {MAX_GRAMMAR_BYTES} bytes in all"
    elif kind == "grammar" and not form.grammar.text:
        yield "structured_output.grammar.text", "must not be empty"
    if request.stopping.ignore_eos:
        yield "stopping.ignore_eos", f"{WITHOUT}: its end is the end of the sequence"
    if request.sampling.HasField("beam_search") and request.stopping.min_tokens:
        yield "stopping.min_tokens", f"{WITHOUT} and sampling.beam_search"
    if request.sampling.allowed_token_ids:
        yield "sampling.allowed_token_ids", WITHOUT
