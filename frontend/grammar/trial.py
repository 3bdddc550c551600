"""Tries grammars that repeat much: some are valid, and so large that they fail while an output is written.

llguidance builds the states of a regular expression as an output needs them. Where repetitions stand within
repetitions, as in `(a{1,1000}){1,1000}`, each character may add as many as all before it, until a limit ends
the output. So outputs are written here, byte by byte, before the request starts. What a byte costs grows with
the bytes before it at most; so a fraction of the worker's fuel shows within few bytes what would fail later.
"""

import math
import re
import time
from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pagewire.limits.grammars import PARSER_LIMITS

TRIED_REPEATS = 1000
"""Grammars whose counts of repetitions, multiplied, are no more than this are not tried."""
TRIED_BYTES = 512
FUEL_SHARE = 8
"""A step of a trial has the worker's fuel by this: what passes TRIED_BYTES would pass about so many times as
many. `(a{1,1000}){1,10}` fails behind 660 bytes; ordinary grammars pass with half as much fuel."""
CPU_SECONDS = 1.0
"""For all outputs; 512 bytes of ordinary grammars take 0.03."""
TOO_MUCH = "takes too much work: its repetitions multiply"
_COUNTED = re.compile(r"\{(\d*),?(\d*)\}")
_BYTES = (1 << 256) - 1
_CHOICES: tuple[Callable[[int, int], int], ...] = (
    lambda allowed, place: allowed & -allowed,
    lambda allowed, place: 1 << (allowed.bit_length() - 1),
    lambda allowed, place: allowed & -allowed if place % 7 else 1 << (allowed.bit_length() - 1),
)
"""The byte of an output, as a bit of those that are allowed: the lowest, the highest, and some of both."""


def repeats_much(grammar: str) -> bool:
    """Returns whether a grammar's counts of repetitions, multiplied, are more than TRIED_REPEATS."""
    counts = [int(most or least or 1) for least, most in _COUNTED.findall(grammar)]
    return len(counts) > 1 and math.prod(max(1, count) for count in counts) > TRIED_REPEATS


def trial_problem(tokenizer: LLTokenizer, grammar: str) -> str:
    """Returns why outputs of a valid grammar cannot be written; "": those that were tried can.

    tokenizer: frontend.grammar.judge.byte_tokenizer's, whose tokens below 256 are bytes.
    """
    fuel = PARSER_LIMITS["step_lexer_fuel"] // FUEL_SHARE
    limits = LLParserLimits(**{**PARSER_LIMITS, "step_lexer_fuel": fuel})
    beginning = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    end = time.process_time() + CPU_SECONDS
    for choose in _CHOICES:
        matcher = beginning.deep_copy()
        for place in range(TRIED_BYTES):
            allowed = int.from_bytes(matcher.compute_bitmask(), "little") & _BYTES
            if matcher.is_error() or time.process_time() > end:
                return TOO_MUCH
            if not allowed:
                break
            if not matcher.consume_token(choose(allowed, place).bit_length() - 1):
                return TOO_MUCH
    return ""
