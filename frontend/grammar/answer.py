"""The grammar of a whole answer: reasoning, then a requested form, calls, text that calls may follow, or
anything. Each part is judged under the name of its field.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frontend.answers.tables import ReasoningFormat, ToolFormat
from frontend.errors import InvalidRequest, Unsupported
from frontend.grammar.calls import CallableTool, CallWriting
from frontend.grammar.judge import MAX_MESSAGE, GrammarJudge, refused_keywords
from frontend.grammar.lark import ANY, LarkWriter, SpecialTokens, one_of, optional, sequence, without
from frontend.validation.json_objects import read_object
from pagewire.internal.v1 import reader_pb2

TOOLS = "prompt.chat.tools"
BUDGET = "reasoning.budget"
BEGUN = reader_pb2.AnswerForm.REASONING_BEGUN
POSSIBLE = reader_pb2.AnswerForm.REASONING_POSSIBLE
_BREAK = r'("\n\n" | "\n")?'
"""What models write behind the end of their reasoning."""
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
        grammar = self._writer.grammar(form, tools, inner)
        if grammar != inner and (problem := self._judge.problem(grammar)):
            path = "structured_output" if inner is not None else TOOLS if tools else BUDGET
            raise InvalidRequest({path: problem.split("\n")[0][:MAX_MESSAGE]})
        return grammar

    def _check(self, tool: CallableTool) -> None:
        """Judges the calls of one tool alone. Raises InvalidRequest."""
        grammar = self._writer.grammar(reader_pb2.AnswerForm(calls_required=True), [tool], None)
        if problem := self._judge.problem(grammar):
            said = refused_keywords(problem, json.dumps(tool.parameters)) or problem.split("\n")[0]
            raise InvalidRequest({tool.path: said[:MAX_MESSAGE]})


def _callable(tool: reader_pb2.AnswerForm.CallableTool) -> CallableTool:
    path = f"{TOOLS}[{tool.place}].parameters"
    parameters = None
    if tool.HasField("parameters"):
        parameters = read_object(tool.parameters or _NO_ARGUMENTS, path)
    return CallableTool(tool.name, parameters, path)


@dataclass(frozen=True, slots=True)
class AnswerGrammars:
    """Writes the grammars of the answers of one model."""

    special: SpecialTokens
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None

    @property
    def _marks(self) -> tuple[str, str] | None:
        """What stands before and behind reasoning."""
        if self.tools is not None and self.tools.frames is not None:
            return self.tools.frames.reasoning
        return (self.reasoning.open, self.reasoning.close) if self.reasoning is not None else None

    def grammar(self, form: reader_pb2.AnswerForm, tools: Sequence[CallableTool], inner: str | None) -> str:
        """Returns the grammar of an answer. inner: that of the requested form; None: there is none. Raises
        InvalidRequest, Unsupported."""
        lark = LarkWriter()
        reasoning = self._reasoning(lark, form)
        if inner is not None:
            if not reasoning and not self._is_framed:
                return inner
            body = sequence(self._answer_mark, "@form")
            return _with_inner(lark.grammar(sequence(reasoning, body)), inner)
        calls = None
        if tools and self.tools is not None and self.tools.writing is not None:
            many = not form.single_call
            calls = CallWriting(lark, self.special, self.tools, self.tools.writing, tools, many=many)
        if calls is not None and form.calls_required:
            body = calls.calls()
        elif self._is_framed:
            body = self._framed(lark, calls)
        elif calls is not None:
            body = calls.within_text()
        else:
            body = self._anything(lark)
        return lark.grammar(sequence(reasoning, body))

    @property
    def _is_framed(self) -> bool:
        return self.tools is not None and self.tools.frames is not None

    @property
    def _answer_mark(self) -> str:
        frames = self.tools.frames if self.tools is not None else None
        return self.special.in_lark(frames.answer) if frames is not None else ""

    def _reasoning(self, lark: LarkWriter, form: reader_pb2.AnswerForm) -> str:
        """Returns an expression for the reasoning, up to its end; "": there is none. Raises Unsupported."""
        if self._marks is None or form.reasoning not in (BEGUN, POSSIBLE):
            return ""
        opens, closes = self._marks
        closing = self.special.in_lark(closes)
        if self.special.first_in(closes) is None:
            if form.HasField("reasoning_budget"):
                problem = "the mark that ends the model's reasoning is no token, so that it cannot be forced"
                raise Unsupported({BUDGET: problem})
            thoughts = lark.rule(f"{ANY} {closing}", "[lazy]")
        elif form.HasField("reasoning_budget"):
            most = form.reasoning_budget
            thoughts = sequence(lark.rule(ANY, f"[max_tokens={most}]") if most else "", closing)
        else:
            thoughts = sequence(lark.terminal(ANY), closing)
        after = "" if self._is_framed else _BREAK
        if form.reasoning == BEGUN:
            return sequence(thoughts, after)
        return optional(sequence(self.special.in_lark(opens), thoughts, after))

    def _framed(self, lark: LarkWriter, calls: CallWriting | None) -> str:
        """Messages of a format that frames all of them: asides, then an answer or a call."""
        assert self.tools is not None and self.tools.frames is not None
        text = lark.terminal(ANY)
        opens, closes = self.tools.frames.aside
        aside = lark.rule(sequence(self.special.in_lark(opens), text, self.special.in_lark(closes)))
        answer = sequence(self._answer_mark, text)
        return sequence(f"{aside}*", one_of(answer, *([calls.calls()] if calls is not None else [])))

    def _anything(self, lark: LarkWriter) -> str:
        """Any tokens but the mark that begins reasoning."""
        mark = self._marks[0] if self._marks is not None else ""
        token = self.special.first_in(mark)
        barred = without(mark) if mark and not self.special.occurs_in(mark) else ""
        text = lark.terminal(" & ".join(part for part in (r"/(.|\n)+/", barred) if part))
        others = sorted(number for content, number in self.special.ids.items() if content != token)
        return f"({text} | <[{','.join(map(str, others))}]>)*" if others else optional(text)


def _with_inner(outer: str, inner: str) -> str:
    """Returns the grammar that refers to another one as @form."""
    text = inner.lstrip()
    form = json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": inner}
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**form, "name": "form"}]}, ensure_ascii=False)
