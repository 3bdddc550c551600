"""A model of ours in llama.cpp's format, by llama.cpp's own converter.

    make_gguf.py LLAMA_CPP_SOURCES MODEL_FOLDER FILE bf16|q8_0

The converter knows tokenizers by what they make of a text, and ours is made up. It is told that it is
GPT-2's, which is right about how bytes are written; no benchmark sends text.
"""

import sys
from pathlib import Path


def main() -> None:
    sources, model, file, weights = sys.argv[1:]
    sys.path[:0] = [sources, str(Path(sources) / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    sys.argv = ["convert", model, "--outfile", file, "--outtype", weights]
    converter.main()


if __name__ == "__main__":
    main()
