"""JSON schemas side by side: which of the official suite's each library takes, and which documents then fit.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 llama-cpp-python==0.3.36   # unpack both
    pip install --no-deps --target peers xgrammar outlines-core apache-tvm-ffi
    PYTHONPATH=.:peers python -m benchmarks.structured_peers \\
        --suite jsonschema-4.26.0/json/tests/draft2020-12 \\
        --llama-cpp llama_cpp_python-0.3.36/llama_cpp/llama_grammar.py

Each library gets tokens of single bytes, as it would be used for the same question: xgrammar with
`strict_mode=False`, since a schema allows more properties than it names; outlines-core's regular expression
through `re.fullmatch`; llama.cpp's converter, whose grammar xgrammar then runs. Documents are written without
spaces. A library that is not there is left out. Each schema is compiled in a process that is killed after
TIMEOUT seconds.
"""

import argparse
import importlib.util
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as Late
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llguidance import LLMatcher

from frontend.grammar.judge import GrammarJudge, byte_tokenizer
from pagewire.v1.generation_pb2 import StructuredOutput

TIMEOUT = 10.0
END = 256
Fits = Callable[[str], bool]
"""Whether a document is a whole one of a compiled schema."""
Library = Callable[[str], Fits]
"""Compiles a schema. Raises what it likes where it cannot."""


@dataclass
class Figures:
    """What became of the suite with one library."""

    refused: int = 0
    failed: int = 0
    """Schemas whose process died, or was killed for its time."""
    wrong_schemas: int = 0
    """Taken, and an invalid document fits."""
    valid: int = 0
    valid_refused: int = 0
    invalid: int = 0
    invalid_accepted: int = 0


def pagewire(schema: str) -> Fits:
    """The frontend's judge, then llguidance."""
    return _llguidance(GrammarJudge({}).compile(StructuredOutput(json_schema=schema)))


def llguidance_alone(schema: str) -> Fits:
    """The library with its own defaults."""
    return _llguidance(LLMatcher.grammar_from_json_schema(schema))


def _llguidance(grammar: str) -> Fits:
    tokenizer = byte_tokenizer([])
    if error := LLMatcher(tokenizer, grammar, log_level=0).get_error():
        raise ValueError(error)

    def fits(document: str) -> bool:
        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        return bool(matcher.consume_tokens(tokenizer.tokenize_str(document)) and matcher.is_accepting())

    return fits


def xgrammar(schema: str) -> Fits:
    compiler = _xgrammar_compiler()
    return _xgrammar(compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False))


def _xgrammar_compiler() -> Any:
    library = importlib.import_module("xgrammar")
    words = [bytes([byte]) for byte in range(END)] + [b"</s>"]
    kind = library.VocabType.RAW
    return library.GrammarCompiler(
        library.TokenizerInfo(words, vocab_type=kind, vocab_size=len(words), stop_token_ids=[END])
    )


def _xgrammar(grammar: Any) -> Fits:
    library = importlib.import_module("xgrammar")

    def fits(document: str) -> bool:
        matcher = library.GrammarMatcher(grammar)
        return bool(matcher.accept_string(document) and matcher.accept_token(END))

    return fits


def outlines_core(schema: str) -> Fits:
    library = importlib.import_module("outlines_core.json_schema")
    pattern = re.compile(library.build_regex_from_schema(schema))
    return lambda document: pattern.fullmatch(document) is not None


def llama_cpp(converter: Path, schema: str) -> Fits:
    """converter: the file `llama_grammar.py` of llama-cpp-python, a translation of llama.cpp's own."""
    specification = importlib.util.spec_from_file_location("llama_grammar", converter)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    grammar = importlib.import_module("xgrammar").Grammar.from_ebnf(module.json_schema_to_gbnf(schema))
    return _xgrammar(_xgrammar_compiler().compile_grammar(grammar))


def libraries(converter: Path | None) -> dict[str, Library]:
    """The libraries that are installed, by name."""
    found: dict[str, Library] = {"pagewire": pagewire, "llguidance alone": llguidance_alone}
    if importlib.util.find_spec("xgrammar"):
        found["xgrammar"] = xgrammar
    if importlib.util.find_spec("outlines_core"):
        found["outlines-core"] = outlines_core
    if converter is not None and importlib.util.find_spec("xgrammar"):
        found["llama.cpp's converter"] = partial(llama_cpp, converter)
    return found


def judged(library: Library, group: dict[str, Any]) -> list[bool] | None:
    """Returns for each document of a group whether it fits; None: the schema is refused."""
    try:
        fits = library(json.dumps(group["schema"]))
        texts = [
            json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False) for test in group["tests"]
        ]
        return [fits(text) for text in texts]
    except Exception:  # each library has its own
        return None


class Trial:
    """One library in a process of its own, which a schema may end."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        """Starts a process that has imported the library."""
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        pool.submit(judged, self._library, {"schema": {}, "tests": []}).result()
        return pool

    def judge(self, group: dict[str, Any]) -> list[bool] | None:
        """Returns what judged() does. Raises Late or BrokenProcessPool, and starts another process."""
        try:
            return self._pool.submit(judged, self._library, group).result(TIMEOUT)
        except (Late, BrokenProcessPool):
            for process in multiprocessing.active_children():
                process.kill()
            self._pool.shutdown()
            self._pool = self._start()
            raise

    def close(self) -> None:
        self._pool.shutdown()


def measure(library: Library, groups: list[dict[str, Any]]) -> Figures:
    figures, trial = Figures(), Trial(library)
    for group in groups:
        try:
            answers = trial.judge(group)
        except (Late, BrokenProcessPool):
            figures.failed += 1
            continue
        if answers is None:
            figures.refused += 1
        else:
            count(figures, group, answers)
    trial.close()
    return figures


def count(figures: Figures, group: dict[str, Any], answers: list[bool]) -> None:
    """Adds the documents of a schema that was taken."""
    wrong = 0
    for test, fits in zip(group["tests"], answers, strict=True):
        if test["valid"]:
            figures.valid += 1
            figures.valid_refused += not fits
        else:
            figures.invalid += 1
            wrong += fits
    figures.invalid_accepted += wrong
    figures.wrong_schemas += wrong > 0


def read_groups(suite: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(suite.glob("*.json")):
        yield from json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", type=Path, required=True, help="folder of the suite's draft2020-12")
    parser.add_argument("--llama-cpp", type=Path, help="llama_grammar.py of llama-cpp-python")
    arguments = parser.parse_args()
    groups = list(read_groups(arguments.suite))
    print(f"{len(groups)} schemas\n")
    print("| library | taken | refused | died or late | taken wrongly | invalid accepted | valid refused |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, library in libraries(arguments.llama_cpp).items():
        found = measure(library, groups)
        taken = len(groups) - found.refused - found.failed
        print(
            f"| {name} | {taken} | {found.refused} | {found.failed} | {found.wrong_schemas} "
            f"| {found.invalid_accepted} of {found.invalid} | {found.valid_refused} of {found.valid} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
