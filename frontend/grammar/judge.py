"""Judges structured outputs before anything starts. Compiling a hostile grammar may take long or crash, so
this runs in a process that can be killed (frontend.prompts.process_pool).

Some grammars are valid, and so large or ambiguous that they fail, or delay others, while an output is
written: `(a{1,1000}){1,1000}`, `s: "a" | s s`. llguidance builds the states of lexer and parser as an output
needs them. So outputs are written here, byte by byte, before the request starts. Where repetitions stand
within repetitions, each character may add as many states as all before it: a fraction of the worker's fuel
shows within few bytes what would fail later.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from frontend.errors import InvalidRequest
from frontend.grammar.endless import endless_part
from frontend.grammar.lark import SpecialTokens
from frontend.grammar.notation import PATHS, grammar_of, regex_grammar
from frontend.text.tokenizer import BYTE_LEVEL
from pagewire.limits import MAX_COMPILED_BYTES, PARSER_LIMITS, is_panic
from pagewire.v1 import generation_pb2

MAX_MESSAGE = 400
"""Characters of an error: it travels in a trailer."""
_IN_LARK = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_IN_REGEX = re.compile(r"regex parse error:\n    (.*)\n(\s*)\^.*\nerror: (.*)")
_KEYWORDS = re.compile(r"Unimplemented keys: (\[.*\])")
_END = "<|end of output|>"
MANY_REPEATS = 1000
"""Counts of repetitions, multiplied, beyond which a step of a trial has less fuel."""
TRIED_BYTES = 512
FUEL_SHARE = 8
"""The worker's fuel by this: what passes TRIED_BYTES would pass about so many times as many.
`(a{1,1000}){1,10}` fails behind 660 bytes; ordinary grammars pass with half as much fuel."""
CPU_SECONDS = 1.0
"""For all outputs; those of ordinary grammars take 0.01."""
TOO_MUCH = "takes too much work: its rules or repetitions multiply"
_COUNTED = re.compile(r"(?:\{|~ *)(\d*)(?:,|\.\.)?(\d*)")
_NUMBERED, _NUMBERS = "<|numbered|>", re.compile(r"<\[[\d, -]+\]>")
_BYTES = (1 << 256) - 1
_CHOICES: tuple[Callable[[int, int], int], ...] = (
    lambda allowed, place: allowed & -allowed,
    lambda allowed, place: 1 << (allowed.bit_length() - 1),
    lambda allowed, place: allowed & -allowed if place % 7 else 1 << (allowed.bit_length() - 1),
    lambda allowed, place: _from(allowed, 131 * place % 256) or allowed & -allowed,
)
"""The byte of an output, as a bit of those that are allowed: the lowest, the highest, some of both, any."""


class GrammarJudge:
    """Makes grammars of structured outputs. special: texts of special tokens, and their ids."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = SpecialTokens(special)
        self._limits = LLParserLimits(**PARSER_LIMITS)
        self._tokenizer: LLTokenizer | None = None

    def compile(self, form: generation_pb2.StructuredOutput) -> str:
        """Returns the grammar of a validated form. Raises InvalidRequest, which says what is wrong where."""
        path = PATHS[form.WhichOneof("format") or ""]
        grammar = grammar_of(form, self._special)
        if problem := self.problem(grammar):
            if form.HasField("regex"):  # as the client wrote it, so that positions are right
                problem = self.problem(regex_grammar(form.regex)) or problem
            elif form.grammar.syntax == generation_pb2.StructuredOutput.Grammar.SYNTAX_LARK:
                problem = self.problem(form.grammar.text) or problem
            raise InvalidRequest({path: _explained(problem, form)[:MAX_MESSAGE]})
        return grammar

    def problem(self, grammar: str) -> str:
        """Returns what is wrong with a grammar, in the library's words; "": nothing."""
        try:
            if len(grammar.encode()) > MAX_COMPILED_BYTES:
                return f"becomes a grammar of more than {MAX_COMPILED_BYTES} bytes"
        except UnicodeEncodeError:
            return "has half of a surrogate pair, which is no character"
        try:
            if problem := LLMatcher.validate_grammar(grammar, limits=self._limits):
                return problem
            if endless := endless_part(grammar):
                return f"{endless} never ends: each alternative leads to it again"
            return self._probe(grammar)
        except BaseException as error:  # a panic of the library is no Exception
            if not is_panic(error):
                raise
            return "cannot be compiled"

    def _probe(self, grammar: str) -> str:
        """Returns what is wrong with the beginning of a valid grammar; "": nothing.

        The probe's tokens are bytes, and the model's special tokens under other numbers. Those that a grammar
        names by numbers are one token here; what its beginning then lacks is left to the worker.
        """
        if self._tokenizer is None:
            self._tokenizer = byte_tokenizer([*self._special.ids, _NUMBERED])
        tried = _NUMBERS.sub(_NUMBERED, grammar)
        matcher = LLMatcher(self._tokenizer, tried, log_level=0, limits=self._limits)
        problem = str(matcher.get_error()) if matcher.is_error() else ""
        matcher.compute_bitmask()
        if matcher.is_error():
            return "" if tried != grammar else problem or "matches nothing"
        return trial_problem(self._tokenizer, tried)


def byte_tokenizer(special: list[str]) -> LLTokenizer:
    """Returns a tokenizer with one token per byte, and these special tokens."""
    vocabulary = {character: byte for byte, character in BYTE_LEVEL.items()}
    added = [name for name in dict.fromkeys([*special, _END]) if name not in vocabulary]
    vocabulary |= {name: len(vocabulary) + place for place, name in enumerate(added)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    described = {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[name], "content": name, "special": True, **plain} for name in added
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    return LLTokenizer(json.dumps(described), n_vocab=len(vocabulary), eos_token=[vocabulary[_END]])


def _explained(problem: str, form: generation_pb2.StructuredOutput) -> str:
    """Returns llguidance's message in the words of what the client sent."""
    kind = form.WhichOneof("format")
    documents = form.json_schema if kind == "json_schema" else form.structural_tag
    if refused := refused_keywords(problem, documents):
        return refused
    if kind == "regex" and (found := _IN_REGEX.search(problem)):
        return f"is no regular expression: {found[3]} at character {max(1, len(found[2]) - 3)}"
    if kind == "grammar" and form.grammar.syntax != generation_pb2.StructuredOutput.Grammar.SYNTAX_LARK:
        problem = problem.replace('the rule "start"', 'the rule "root"')
    if kind == "choice":
        return "cannot be compiled: the choices are too many or too long"
    if found := _IN_LARK.match(problem):
        message = found[3].split("\n")[0]
        is_lark = form.grammar.syntax == generation_pb2.StructuredOutput.Grammar.SYNTAX_LARK
        if kind == "grammar" and is_lark:
            return f"{message} at line {found[1]}, column {found[2]}"
        return message
    return problem.split("\n<")[0]


def refused_keywords(problem: str, schema: str) -> str:
    """Returns which keywords of a schema the library lacks, and where the schema has them; "": none."""
    keywords = _KEYWORDS.search(problem)
    if keywords is None:
        return ""
    names = json.loads(keywords[1])
    return f"uses {' and '.join(names)}, not supported{_places(names, schema) if schema else ''}"


def _places(names: list[str], text: str) -> str:
    """Returns where the schema has one of the keywords, such as " at /properties/a"."""
    try:
        found = next(_pointers(json.loads(text), names, ""), None)
    except RecursionError:
        return ""
    return "" if found is None else f" at {found or '/'}"


def _pointers(part: Any, names: list[str], pointer: str) -> Iterator[str]:
    if isinstance(part, dict):
        if any(name in part for name in names):
            yield pointer
        for key, value in part.items():
            yield from _pointers(value, names, f"{pointer}/{key}")
    elif isinstance(part, list):
        for place, value in enumerate(part):
            yield from _pointers(value, names, f"{pointer}/{place}")


def _from(allowed: int, least: int) -> int:
    """Returns the lowest bit of those that are allowed, from this one on; 0: there is none."""
    above = allowed >> least << least
    return above & -above


def repeats_much(grammar: str) -> bool:
    """Returns whether a grammar's counts of repetitions, multiplied, are more than MANY_REPEATS."""
    counts = [int(most or least or 1) for least, most in _COUNTED.findall(grammar)]
    return len(counts) > 1 and math.prod(max(1, count) for count in counts) > MANY_REPEATS


def trial_problem(tokenizer: LLTokenizer, grammar: str) -> str:
    """Returns why outputs of a valid grammar cannot be written; "": those that were tried can.

    tokenizer: frontend.grammar.judge.byte_tokenizer's, whose tokens below 256 are bytes.
    """
    fuel = PARSER_LIMITS["step_lexer_fuel"] // (FUEL_SHARE if repeats_much(grammar) else 1)
    limits = LLParserLimits(**{**PARSER_LIMITS, "step_lexer_fuel": fuel})
    beginning = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    no_end, end = ~(1 << tokenizer.eos_token), time.process_time() + CPU_SECONDS
    for choose in _CHOICES:
        matcher = beginning.deep_copy()
        for place in range(TRIED_BYTES):
            allowed = int.from_bytes(matcher.compute_bitmask(), "little") & no_end
            allowed = allowed & _BYTES or allowed
            if matcher.is_error() or time.process_time() > end:
                return TOO_MUCH
            if not allowed:
                break
            if not matcher.consume_token(choose(allowed, place).bit_length() - 1):
                return TOO_MUCH
    return ""
