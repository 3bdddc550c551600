"""A trained model gives the text that transformers gives: its weights, read from a GGUF file."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from frontend.model.info import load_model
from pagewire.config import FrontendConfig
from pagewire.v1 import prompt_pb2
from tests.gguf_files import MODULES
from tests.worker.fakes import Driver

QUESTION = "What is the capital of France?"
LENGTH = 112
NEAR = 0.75
"""By how much the logit of a token chosen in bfloat16 may be below the largest in float32. Logits of this
model spread over some 30; 16 bits change them by a few tenths."""
CUT = 41


@pytest.fixture(scope="module")
def prompts(smollm: Path) -> list[list[int]]:
    """A plain text and a question in the chat template."""
    model = load_model(FrontendConfig(model=str(smollm)))
    assert model.chat_template is not None
    chat = prompt_pb2.Chat(
        messages=[prompt_pb2.ChatMessage(role="user", content=[prompt_pb2.ContentPart(text=QUESTION)])]
    )
    asked = model.chat_template.render(model.chat_template.read(chat, "chat"), "chat")
    texts = ("Once upon a time, in a small village by the sea,", asked)
    return [list(model.tokenizer.encode(text, add_special_tokens=False).token_ids) for text in texts]


@pytest.fixture(scope="module")
def reference(smollm: Path) -> transformers.LlamaForCausalLM:
    """transformers' model in float32 with the weights that the gguf package reads."""
    reader = gguf.GGUFReader(smollm)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    hub = {short: module for module, short in MODULES.items()}
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        *layer, short, _ = tensor.name.split(".")
        count = {"attn_q": heads, "attn_k": kv_heads}.get(short)
        if count is not None:  # rows of neighbours become rows of two halves
            values = values.view(count, -1, 2, values.shape[-1]).transpose(1, 2).reshape(values.shape)
        prefix = f"model.layers.{layer[1]}." if layer else ""
        weights[f"{prefix}{hub[short]}.weight"] = values
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    # What is computed rather than loaded has been left on the device without memory.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def continued(path: Path, prompts: list[list[int]], dtype: str, length: int = LENGTH) -> list[list[int]]:
    """Greedy tokens of some prompts, computed side by side."""
    driver = Driver(path, record=False, dtype=dtype, block_size=16, num_blocks=80)
    sequences = [driver.add(prompt, length)[0] for prompt in prompts]
    driver.run()
    return [sequence.output for sequence in sequences]


@pytest.fixture(scope="module")
def in_16_bits(smollm: Path, prompts: list[list[int]]) -> list[list[int]]:
    return continued(smollm, prompts, "bfloat16")


@torch.inference_mode()
def distances(model: transformers.LlamaForCausalLM, prompt: list[int], output: list[int]) -> torch.Tensor:
    """By how much each token's logit is below the largest one at its place, after the tokens before it."""
    logits = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
    return logits.max(-1).values - logits.gather(1, torch.tensor(output)[:, None])[:, 0]


def test_float32_gives_the_text_of_transformers(
    smollm: Path, prompts: list[list[int]], reference: transformers.LlamaForCausalLM
):
    """Each token is the most probable one after those before it, which is what greedy decoding means."""
    for prompt, output in zip(prompts, continued(smollm, prompts, "float32"), strict=True):
        assert len(output) == LENGTH
        assert not distances(reference, prompt, output).any()


def test_bfloat16_stays_near(
    prompts: list[list[int]], in_16_bits: list[list[int]], reference: transformers.LlamaForCausalLM
):
    for prompt, output in zip(prompts, in_16_bits, strict=True):
        assert distances(reference, prompt, output).max() < NEAR


def test_it_knows_the_capital_of_france(smollm: Path, in_16_bits: list[list[int]]):
    model = load_model(FrontendConfig(model=str(smollm)))
    (answer,) = model.tokenizer.decode([in_16_bits[1]], skip_special_tokens=False)
    assert "Paris" in answer.partition("<|im_end|>")[0]


@pytest.mark.cpu_kernels
def test_a_text_that_is_cut_goes_on_the_same(
    smollm: Path, prompts: list[list[int]], in_16_bits: list[list[int]]
):
    """Tokens that were delivered become a prompt: the rest is the same, bit for bit."""
    longer = [[*prompt, *output[:CUT]] for prompt, output in zip(prompts, in_16_bits, strict=True)]
    rest = continued(smollm, longer, "bfloat16", LENGTH - CUT)
    assert rest == [output[CUT:] for output in in_16_bits]
