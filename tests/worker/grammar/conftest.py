"""Grammars over one token per byte, and an end token."""

import pytest

from frontend.grammar.judge import byte_tokenizer
from worker.grammar.compiler import GrammarCompiler

EOS = 256
"""Of the compiler: tokens below are bytes."""


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer([]), "llguidance test")
