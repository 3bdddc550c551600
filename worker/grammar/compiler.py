"""Compiles grammars: once per content, in threads, while prompts are computed."""

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from pagewire.limits import PARSER_LIMITS, is_panic
from worker.grammar.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_COMPILED = 64
"""Compiled grammars that are kept. One takes some hundred kilobytes, more with the states of its lexer."""
NUM_THREADS = 2


class GrammarError(Exception):
    """A grammar does not compile. Its text says why, without what the grammar produces."""


class GrammarCompiler:
    """Compiled grammars by content. Methods may be called from several threads."""

    def __init__(self, tokenizer: "LLTokenizer", engine: str) -> None:
        """engine: the library's name and version, on which all workers of a service agree."""
        self.engine = engine
        self._tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar-compiler")
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Future[Matcher]] = OrderedDict()

    def compile(self, grammar: str) -> "Future[Matcher]":
        """Returns a matcher at the grammar's beginning, to be copied; its future raises GrammarError."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None:
                compiled = self._compiled[grammar] = self._pool.submit(self._compile, grammar)
                if len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return compiled

    def _compile(self, grammar: str) -> Matcher:
        from llguidance import LLMatcher, LLParserLimits

        try:
            limits = LLParserLimits(**PARSER_LIMITS)
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
            error = matcher.get_error().split("\n")[0] if matcher.is_error() else ""
            if not error:
                matcher.compute_bitmask()  # copies share what the lexer has learned
                error = "the grammar allows no output" if matcher.is_error() else ""
        except BaseException as problem:  # a panic of the library is no Exception
            if not is_panic(problem):
                raise
            raise GrammarError("the grammar cannot be compiled") from None
        if error:
            raise GrammarError(error)
        return matcher
