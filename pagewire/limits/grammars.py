"""Limits of grammars: frontends report violations to clients, the engine core checks again, and the worker
compiles within them."""

from typing import Any

MAX_GRAMMAR_BYTES = 1 << 17
"""Bytes of what a client sends: a schema, a regular expression, a grammar, a document, or all choices."""
MAX_CHOICES = 4096
MAX_COMPILED_BYTES = 8 * MAX_GRAMMAR_BYTES
"""Bytes of the grammar that a frontend makes of it."""

PARSER_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # which would contain the output
}
"""Of llguidance.LLParserLimits. A frontend judges a grammar within the limits that the worker has; fuel
bounds the time of a mask: about 15 ms, for grammars made to be slow."""
