"""Makes the grammar of an answer's form, and judges each part of it under the name of its field."""

import json
from collections.abc import Mapping

from frontend.answers.tables import ReasoningFormat, ToolFormat
from frontend.errors import InvalidRequest, Unsupported
from frontend.grammar.calls.answer import AnswerGrammars, NoEndToken
from frontend.grammar.calls.calls import BadTool, CallableTool
from frontend.grammar.judge import MAX_MESSAGE, GrammarJudge, refused_keywords
from frontend.grammar.special_tokens import SpecialTokens
from frontend.validation.json_objects import read_object
from pagewire.internal.v1 import reader_pb2

TOOLS = "prompt.chat.tools"
BUDGET = "reasoning.budget"
_NO_ARGUMENTS = '{"type":"object","properties":{}}'


class AnswerJudge:
    """Makes grammars of the answers of one model."""

    def __init__(
        self, special: Mapping[str, int], tools: ToolFormat | None, reasoning: ReasoningFormat | None
    ) -> None:
        """special: texts of special tokens, and their ids. tools, reasoning: the model's formats."""
        self._judge = GrammarJudge(special)
        self._writer = AnswerGrammars(SpecialTokens(special), tools, reasoning)

    def compile(self, form: reader_pb2.AnswerForm) -> str:
        """Returns the grammar of a validated form. Raises InvalidRequest, Unsupported, naming the field."""
        inner = self._judge.compile(form.structured_output) if form.HasField("structured_output") else None
        tools = [_callable(tool) for tool in form.tools]
        for tool in tools:
            if tool.parameters is not None:
                self._check(tool)
        try:
            grammar = self._writer.grammar(form, tools, inner)
        except NoEndToken:
            problem = "the mark that ends the model's reasoning is no token, so that it cannot be forced"
            raise Unsupported({BUDGET: problem}) from None
        if grammar != inner and (problem := self._judge.problem(grammar)):
            path = "structured_output" if inner is not None else TOOLS if tools else BUDGET
            raise InvalidRequest({path: problem.split("\n")[0][:MAX_MESSAGE]})
        return grammar

    def _check(self, tool: CallableTool) -> None:
        """Judges the calls of one tool alone. Raises InvalidRequest."""
        try:
            grammar = self._writer.grammar(reader_pb2.AnswerForm(calls_required=True), [tool], None)
        except BadTool as refused:
            raise InvalidRequest({refused.path: str(refused)}) from None
        if problem := self._judge.problem(grammar):
            said = refused_keywords(problem, json.dumps(tool.parameters)) or problem.split("\n")[0]
            raise InvalidRequest({tool.path: said[:MAX_MESSAGE]})


def _callable(tool: reader_pb2.AnswerForm.CallableTool) -> CallableTool:
    path = f"{TOOLS}[{tool.place}].parameters"
    parameters = None
    if tool.HasField("parameters"):
        parameters = read_object(tool.parameters or _NO_ARGUMENTS, path)
    return CallableTool(tool.name, parameters, path)
