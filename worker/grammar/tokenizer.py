"""The model's tokens, as llguidance needs them: built once while the weights are loaded.

It takes seconds of one core and some 150 MB for a vocabulary of 150,000, so `--no-structured-output` leaves
it out. It is part of start-up, so that the frontend can refuse structured output by name where it cannot be
built.
"""

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pagewire.checkpoints.added_tokens import with_missing_tokens
from pagewire.checkpoints.files import read_object
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.vocabulary import GGUFVocabulary
from pagewire.internal.v1 import worker_pb2
from pagewire.limits import is_panic
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.rows import GrammarRows

logger = logging.getLogger(__name__)

FILE = "tokenizer.json"
WHAT = "cannot read the tokenizer"


class GrammarsToCome:
    """Builds a compiler in a thread while other things are loaded."""

    def __init__(
        self, initialize: worker_pb2.Initialize, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._vocab_size = vocab_size
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar-tokenizer")
        self._compiler: Future[GrammarCompiler | None] | None = None
        if not initialize.no_structured_output:
            path = Path(initialize.tokenizer_path or initialize.model_path)
            self._compiler = self._pool.submit(load_compiler, path, vocab_size, eos_token_ids)

    def rows(self, report: Callable[[str, float], None]) -> GrammarRows:
        """Waits for the compiler, and returns rows that may have grammars where there is one."""
        if self._compiler is not None and not self._compiler.done():
            report("grammars", 0.0)
        compiler = self._compiler.result() if self._compiler is not None else None
        self._pool.shutdown()
        return GrammarRows(self._vocab_size, compiler)


def load_compiler(path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> GrammarCompiler | None:
    """Returns the compiler for a checkpoint, a folder or a GGUF file; None, with the reason in the log, where
    there can be none."""
    try:
        import llguidance

        tokenizer = llguidance.LLTokenizer(
            _described(path), n_vocab=vocab_size, eos_token=list(eos_token_ids)
        )
    except ImportError:
        why = "llguidance is not installed"
    except BaseException as error:  # a panic of the library is no Exception
        if not (isinstance(error, ValueError | StartupError) or is_panic(error)):
            raise
        why = f"its tokenizer is not supported: {str(error).splitlines()[0] if str(error) else error!r}"
    else:
        return GrammarCompiler(tokenizer, f"llguidance {llguidance.__version__}")
    logger.info("no structured output: %s", why)
    return None


def _described(path: Path) -> str:
    """Returns the content of tokenizer.json with the tokens that the files beside it add, or the same
    of a GGUF file. Raises StartupError."""
    if is_gguf(path):
        return GGUFVocabulary(read_header(path)).make().to_str()
    content = read_object(path, FILE, WHAT)
    if content is None:
        raise StartupError(WHAT, f"the checkpoint has no {FILE}")
    names = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
    named, config, ids = (read_object(path, name, WHAT) or {} for name in names)
    return json.dumps(with_missing_tokens(content, named | config, ids))
