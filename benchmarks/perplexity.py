"""Perplexity of a model in float32, in bfloat16, with --kv-cache-dtype fp8_e4m3 and with each --quantization.

    python -m benchmarks.perplexity $(python -m scripts.real_model --path)
    python -m benchmarks.perplexity MODEL --text FILE --pieces 32

The text is that of Python's own help pages (pydoc_data.topics) unless a file is given; a piece has 511
tokens.
"""

import argparse
import math
from pathlib import Path

import torch

from benchmarks.quantization import FORMS as QUANTIZED
from benchmarks.quantization import LENGTH, make_runner, perplexity
from frontend.model.info import load_model
from pagewire.checkpoints.paths import checkpoint_path
from pagewire.config import FrontendConfig

FORMS = {
    "float32": ("", "float32", ""),
    "bfloat16": ("", "bfloat16", ""),
    "fp8 cache": ("", "bfloat16", "fp8_e4m3"),
    **{name: (name, "bfloat16", "") for name in QUANTIZED},
}
"""Name -> quantization, dtype and kv_cache_dtype of Initialize."""


def help_pages() -> str:
    """Returns English prose about Python, some 700,000 characters, the same for each version of Python."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def main() -> None:
    """Prints a line per form."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of a checkpoint, or a GGUF file")
    parser.add_argument("--text", type=Path, help="file to read in place of Python's help pages")
    parser.add_argument("--pieces", type=int, default=8)
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8") if options.text else help_pages()
    tokenizer = load_model(FrontendConfig(model=options.model)).tokenizer
    token_ids = list(tokenizer.encode(text, add_special_tokens=False).token_ids)
    size = LENGTH - 1
    pieces = [token_ids[first : first + size] for first in range(0, len(token_ids) - size, size)]
    pieces = pieces[:: max(1, len(pieces) // options.pieces)][: options.pieces]
    path = checkpoint_path(options.model)
    print(f"{path.name}: {len(pieces)} pieces of {size} tokens, torch {torch.__version__}")
    exact = math.nan
    for name, form in FORMS.items():
        value = perplexity(make_runner(path, *form), pieces)
        exact = value if name == "float32" else exact
        print(f"{name:<9} {value:8.3f}  {100 * (value / exact - 1):+.2f} %", flush=True)


if __name__ == "__main__":
    main()
