"""Structured output over a corpus of JSON schemas: what compiling and masks cost, and what is valid.

    python -m benchmarks.structured                                    # the demo model, a schema of this file
    python -m benchmarks.structured --tokenizer tokenizer.json --eos 151645 --corpus maskbench/data

--corpus: a folder of JSON files, each {"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}, such as
the data of MaskBench (github.com/guidance-ai/jsonschemabench). --tokenizer: a `tokenizer.json` or a GGUF
file; --eos: the id of its end token. What a row of the worker does is done here by the same objects. A step
is what follows a token: the matcher advances, and the next mask is computed. Steps of the corpus's documents
and of random documents are apart. Times are CPU time of the process.
"""

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from frontend.errors import InvalidRequest
from frontend.grammar.judge import GrammarJudge
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.vocabulary import GGUFVocabulary
from pagewire.v1.generation_pb2 import StructuredOutput
from worker.grammar.compiler import GrammarCompiler, GrammarError
from worker.grammar.matcher import RowMatcher

MAX_TOKENS = 300
"""Of a random document; a longer one is left as it is."""
OWN_CORPUS: list[dict[str, Any]] = [
    {
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "kind": {"enum": ["person", "company"]},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
            },
            "required": ["name", "age", "kind"],
            "additionalProperties": False,
        },
        "tests": [
            {
                "valid": True,
                "data": {"name": "Ada Lovelace", "age": 36, "kind": "person", "tags": ["x", "y z"]},
            },
            {"valid": False, "data": {"name": "Ada Lovelace", "age": 151, "kind": "person"}},
        ],
    },
    {"schema": {"not": {"type": "string"}}, "tests": []},
]


@dataclass
class Figures:
    """What was found. Times in seconds."""

    schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Schemas, by why."""
    judging: list[float] = field(default_factory=list)
    compiling: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """Of the corpus's documents."""
    by_schema: list[tuple[float, int]] = field(default_factory=list)
    """The time of these steps, and their number."""
    random_steps: list[float] = field(default_factory=list)
    first_masks: list[float] = field(default_factory=list)
    valid: int = 0
    valid_refused: int = 0
    invalid: int = 0
    invalid_accepted: int = 0
    documents: int = 0
    documents_cut: int = 0
    documents_invalid: list[str] = field(default_factory=list)


@dataclass
class Tools:
    """What the parts of a service have."""

    judge: GrammarJudge
    compiler: GrammarCompiler
    tokenizer: LLTokenizer


def measure(entry: dict[str, Any], tools: Tools, figures: Figures) -> None:
    """Adds the figures of one schema."""
    tokenizer = tools.tokenizer
    figures.schemas += 1
    began = time.process_time()
    try:
        grammar = tools.judge.compile(StructuredOutput(json_schema=json.dumps(entry["schema"])))
    except InvalidRequest as refusal:
        (why,) = refusal.violations.values()
        figures.refused[reason(why)] += 1
        return
    judged = time.process_time()
    try:
        matcher = tools.compiler.compile(grammar).result()
    except GrammarError as error:
        figures.refused[reason(str(error))] += 1
        return
    figures.judging.append(judged - began)
    figures.compiling.append(time.process_time() - judged)
    assert isinstance(matcher, LLMatcher)
    before = len(figures.steps)
    for test in entry["tests"]:
        text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
        fits = follow(
            RowMatcher(matcher.deep_copy(), words_of(tokenizer)), tokenizer.tokenize_str(text), figures
        )
        whole = matcher.deep_copy()
        accepted = fits and bool(whole.consume_tokens(tokenizer.tokenize_str(text))) and whole.is_accepting()
        if test["valid"]:
            figures.valid += 1
            figures.valid_refused += not accepted
        else:
            figures.invalid += 1
            figures.invalid_accepted += accepted
    if steps := figures.steps[before:]:
        figures.by_schema.append((sum(steps), len(steps)))
    invent(RowMatcher(matcher.deep_copy(), words_of(tokenizer)), entry["schema"], tokenizer, figures)


def follow(row: RowMatcher, tokens: list[int], figures: Figures) -> bool:
    """Has a row produce a document's tokens, as far as it can; returns whether it can."""
    began = time.process_time()
    row.begin([])
    figures.first_masks.append(time.process_time() - began)
    for token in tokens:
        if not row.words[token // 32] >> token % 32 & 1:
            return False
        began = time.process_time()
        row.advance(token)
        figures.steps.append(time.process_time() - began)
    return not row.error


def invent(row: RowMatcher, schema: Any, tokenizer: LLTokenizer, figures: Figures) -> None:
    """Has a row produce random tokens under its masks, as random weights do, and judges the document."""
    draw, tokens = random.Random(json.dumps(schema)), list[int]()
    row.begin([])
    while len(tokens) < MAX_TOKENS and not row.error:
        bits = np.unpackbits(row.words.view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
        if bits[tokenizer.eos_token]:
            break
        allowed = np.flatnonzero(bits)
        tokens.append(int(allowed[draw.randrange(len(allowed))]))
        began = time.process_time()
        row.advance(tokens[-1])
        figures.random_steps.append(time.process_time() - began)
    else:
        figures.documents_cut += 1
        return
    figures.documents += 1
    text = tokenizer.decode_bytes(tokens).decode("utf-8", errors="replace")
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as problem:
        figures.documents_invalid.append(f"{text[:80]}: {str(problem).splitlines()[0][:80]}")


def reason(message: str) -> str:
    """Returns a refusal without what is particular to its schema."""
    return message.split(" at ")[0].split(":")[0][:60]


def words_of(tokenizer: LLTokenizer) -> int:
    """Returns the words of a mask."""
    return int(-(-tokenizer.vocab_size // 32))


def entries(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the schemas with their tests, a random part of the corpus."""
    if options.corpus is None:
        yield from OWN_CORPUS
        return
    files = sorted(options.corpus.glob("*.json"))
    for file in random.Random(1).sample(files, min(options.files, len(files))):
        yield json.loads(file.read_text(encoding="utf-8"))


def times(name: str, seconds: list[float], unit: float) -> str:
    """Returns a row of the table: count, median, mean, p90, p99, largest."""
    ordered = sorted(seconds) or [0.0]
    parts = [ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.9, 0.99)]
    shown = [parts[0], statistics.fmean(ordered), *parts[1:], ordered[-1]]
    return f"| {name} | {len(seconds):,} | " + " | ".join(f"{value / unit:,.1f}" for value in shown) + " |"


def costliest(figures: Figures) -> str:
    """Returns how much of the steps' time the costliest schemas have, one in ten."""
    ordered = sorted(figures.by_schema, reverse=True)
    count = max(1, len(ordered) // 10)
    share = sum(took for took, _ in ordered[:count]) / max(sum(took for took, _ in ordered), 1e-9)
    others = sum(took for took, _ in ordered[count:]) / max(1, sum(steps for _, steps in ordered[count:]))
    return (
        f"costliest schemas: {count} of {len(ordered)} have {share:.0%} of the steps' time;"
        f" mean of the others: {others / 1e-6:.1f} us"
    )


def report(figures: Figures, vocab_size: int) -> str:
    """Returns the tables."""
    refused = sum(figures.refused.values())
    causes = "; ".join(f"{count} {why}" for why, count in figures.refused.most_common(8))
    lines = [
        f"vocabulary of {vocab_size:,}",
        "",
        "| | count | median | mean | p90 | p99 | largest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        times("step of a row, us", figures.steps, 1e-6),
        times("step in a random document, us", figures.random_steps, 1e-6),
        times("first mask of a row, us", figures.first_masks, 1e-6),
        times("compile, ms", figures.compiling, 1e-3),
        times("judge in the frontend, ms", figures.judging, 1e-3),
        "",
        *([costliest(figures)] if len(figures.by_schema) >= 10 else []),
        f"schemas: {figures.schemas}, refused: {refused} ({causes})",
        f"valid documents: {figures.valid}, refused: {figures.valid_refused}",
        f"invalid documents: {figures.invalid}, accepted: {figures.invalid_accepted}",
        f"random documents: {figures.documents}, invalid: {len(figures.documents_invalid)};"
        f" {figures.documents_cut} were cut at {MAX_TOKENS} tokens",
        *figures.documents_invalid,
    ]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> Figures:
    """Measures the corpus."""
    file = options.tokenizer or checkpoint_folder("demo") / "tokenizer.json"
    eos = [options.eos] if options.eos is not None else None
    if is_gguf(file):
        described = GGUFVocabulary(read_header(file)).make().to_str()
    else:
        described = file.read_text(encoding="utf-8")
    tokenizer = LLTokenizer(described, eos_token=eos)
    tools, figures = Tools(GrammarJudge({}), GrammarCompiler(tokenizer, "llguidance"), tokenizer), Figures()
    for entry in entries(options):
        measure(entry, tools, figures)
    print(report(figures, tokenizer.vocab_size), flush=True)
    return figures


def main(arguments: list[str] | None = None) -> Figures:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--eos", type=int)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--files", type=int, default=500)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
