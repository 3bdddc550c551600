"""Fields that become a grammar: which of them go together. frontend.grammar judges their texts. Pure."""

from collections.abc import Iterator

from frontend.validation.tools import enforced_field, enforces_calls, requires_calls
from pagewire.limits.grammars import MAX_GRAMMAR_BYTES
from pagewire.v1 import generation_pb2

FORMATS = "json_object, json_schema, regex, choice, grammar or structural_tag"


CHAT = "prompt.chat"
BUDGET = "reasoning.budget"


def fields_with_grammars(request: generation_pb2.GenerateRequest) -> list[str]:
    """Returns the paths of the fields for which an answer needs a grammar."""
    fields = []
    if request.HasField("structured_output"):
        fields.append("structured_output")
    if enforces_calls(request.prompt.chat):
        fields.append(f"{CHAT}.{enforced_field(request.prompt.chat)}")
    if request.reasoning.HasField("budget"):
        fields.append(BUDGET)
    return fields


def contradictions(request: generation_pb2.GenerateRequest) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for a form that is not complete, and for fields that cannot be combined."""
    if request.HasField("structured_output"):
        yield from _form_problems(request.structured_output)
        if requires_calls(request.prompt.chat):
            yield f"{CHAT}.tool_choice", "cannot be combined with structured_output: the answer is a call"
    if request.reasoning.HasField("budget") and not request.prompt.HasField("chat"):
        yield BUDGET, "needs prompt.chat: only a conversation's answer has reasoning"
    fields = fields_with_grammars(request)
    if not fields:
        return
    without = f"cannot be combined with {fields[0]}"
    if request.stopping.ignore_eos:
        yield "stopping.ignore_eos", f"{without}: its end is the end of the sequence"
    if request.sampling.HasField("beam_search") and request.stopping.min_tokens:
        yield "stopping.min_tokens", f"{without} and sampling.beam_search"
    if request.sampling.allowed_token_ids:
        yield "sampling.allowed_token_ids", without


def _form_problems(form: generation_pb2.StructuredOutput) -> Iterator[tuple[str, str]]:
    kind = form.WhichOneof("format")
    if kind is None:
        yield "structured_output", f"is required to have one of {FORMATS}"
    elif kind == "choice" and not form.choice.values:
        yield "structured_output.choice.values", "must not be empty"
    elif kind == "choice" and sum(len(value.encode()) for value in form.choice.values) > MAX_GRAMMAR_BYTES:
        yield "structured_output.choice.values", f"must be at most {MAX_GRAMMAR_BYTES} bytes in all"
    elif kind == "grammar" and not form.grammar.text:
        yield "structured_output.grammar.text", "must not be empty"
