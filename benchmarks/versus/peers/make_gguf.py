"""A model of ours in llama.cpp's format, by llama.cpp's own converter.

    make_gguf.py LLAMA_CPP_SOURCES MODEL_FOLDER FILE bf16|q8_0
    make_gguf.py LLAMA_CPP_SOURCES BF16_FILE FILE q4_0|q4_k_m      # by llama.cpp's own quantization

The converter knows tokenizers by what they make of a text, and ours is made up. It is told that it is
GPT-2's, which is right about how bytes are written; no benchmark sends text.
"""

import sys
from pathlib import Path

QUANTIZED = {"q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0", "q4_k_m": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}


def quantize(model: str, file: str, weights: str) -> None:
    """Writes a GGUF file of fewer bits. Needs LLAMA_CPP_LIB_PATH."""
    import llama_cpp as llama

    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, QUANTIZED[weights])
    code = llama.llama_model_quantize(model.encode(), file.encode(), params)
    if code:
        sys.exit(f"llama_model_quantize({model}, {weights}): {code}")


def main() -> None:
    sources, model, file, weights = sys.argv[1:]
    if weights in QUANTIZED:
        quantize(model, file, weights)
        return
    sys.path[:0] = [sources, str(Path(sources) / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    sys.argv = ["convert", model, "--outfile", file, "--outtype", weights]
    converter.main()


if __name__ == "__main__":
    main()
