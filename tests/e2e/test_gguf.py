"""A service on a GGUF file: from text to text, with the tokens of the model that was written into it."""

from pathlib import Path

from pagewire import LLM
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_gguf
from tests.worker.fakes import Driver

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
PROMPT = [5, 100, 33, 210, 7, 8]


def test_a_gguf_file_is_served(tmp_path: Path):
    folder = make_checkpoint("llama", tmp_path / "llama", num_hidden_layers=1)
    path = write_gguf(folder, tmp_path / "tiny.gguf", tokenizer__chat_template=TEMPLATE)
    with LLM(str(path), dtype="float32", device="cpu", num_blocks=64) as llm:
        (answer,) = llm.generate([PROMPT], temperature=0, max_tokens=12, ignore_eos=True, progress=False)
        (reply,) = llm.chat([[{"role": "user", "content": "Hello"}]], max_tokens=4, progress=False)
    driver = Driver(folder, dtype="float32")
    sequence = driver.add(PROMPT, 12)[0]
    driver.run()
    assert list(answer.token_ids) == sequence.output
    assert reply.prompt_tokens > 0
