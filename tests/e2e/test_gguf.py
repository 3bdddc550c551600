"""A service on a GGUF file: from text to text, with the tokens of the model that was written into it."""

from pathlib import Path

import pytest

from pagewire import LLM
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_gguf
from tests.worker.fakes import Driver

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
PROMPT = [5, 100, 33, 210, 7, 8]


@pytest.mark.parametrize("kind", ["F32", "IQ4_XS"])
def test_a_gguf_file_is_served(kind: str, tmp_path: Path):
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    folder = make_checkpoint("llama", tmp_path / "llama", **shape)
    types = dict.fromkeys(("attn_q", "attn_v", "ffn_down"), kind)
    path = write_gguf(folder, tmp_path / "tiny.gguf", types, tokenizer__chat_template=TEMPLATE)
    with LLM(str(path), dtype="float32", device="cpu", num_blocks=64) as llm:
        (answer,) = llm.generate([PROMPT], temperature=0, max_tokens=12, ignore_eos=True, progress=False)
        (reply,) = llm.chat([[{"role": "user", "content": "Hello"}]], max_tokens=4, progress=False)
    driver = Driver(folder if kind == "F32" else path, dtype="float32")
    sequence = driver.add(PROMPT, 12)[0]
    driver.run()
    assert list(answer.token_ids) == sequence.output
    assert reply.prompt_tokens > 0
