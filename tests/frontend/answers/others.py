"""What the parsers of other servers read in the answers of transcripts.py, beside ours (docs/tools.md).

    python -m tests.frontend.answers.others [--llama-server FILE] [FORMAT ...]

vLLM, SGLang and the packages of a format's authors (mistral-common, cohere-melody, openai-harmony) are asked
where `import` finds them; they need no model. llama-server has a model that can say nothing but the answer,
under a chat template of real_templates.py. `2, 0`: calls that are read with all arguments in an answer with
two; the same where a string argument spells a mark that ends calls or arguments.
"""

import argparse
import copy
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from openai_harmony import HarmonyEncodingName, Role, load_harmony_encoding

from frontend.text.tokenizer_files import load_tokenizer
from tests.free_ports import free_ports
from tests.frontend.answers.real_templates import folder_of_templates
from tests.frontend.answers.transcripts import CALLS, SCHEMAS, TRANSCRIPTS, bound, read
from tests.patience import PATIENCE_S
from tests.real.gpt_oss import gpt_oss_folder, vocabulary_file

Calls = list[tuple[str, Any]]
"""Names and arguments."""
Parser = Callable[[str, str, str], Calls]
"""(format's name, answer, text that stands in it for each SLOT): raises any exception where it fails."""
SLOT = "<b>"
"""Stands within a string argument."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": each}},
    }
    for name, each in SCHEMAS.items()
]
SIZE = 64
"""Hidden units of the model."""


class Names(NamedTuple):
    """Of a format elsewhere; empty: there is none."""

    mark: str  # that ends calls or arguments
    vllm: str = ""
    sglang: str = ""
    template: str = ""
    authors: str = ""  # their package


MISTRAL = "mistral-common"
FORMATS = {
    "hermes": Names("</tool_call>", "hermes", "hermes", "Qwen-Qwen2.5-7B-Instruct"),
    "deepseek-v3": Names("<｜tool▁call▁end｜>", "deepseek_v3", "deepseekv3", "llama-cpp-deepseek-r1"),
    "deepseek-v3.1": Names("<｜tool▁call▁end｜>", "deepseek_v31", "deepseekv31", "deepseek-ai-DeepSeek-V3.1"),
    "deepseek-v3.2": Names(
        "</｜DSML｜parameter>", "deepseek_v32", "deepseekv32", "deepseek-ai-DeepSeek-V3.2"
    ),
    "kimi-k2": Names("<|tool_call_end|>", "kimi_k2", "kimi_k2", "Kimi-K2-Instruct"),
    "mistral": Names("[TOOL_CALLS]", "mistral", "mistral", "Mistral-Small-3.2-24B-Instruct-2506", MISTRAL),
    "mistral-list": Names("]", "mistral", "mistral", "mistralai-Mistral-Nemo-Instruct-2407", MISTRAL),
    "cohere": Names(
        "<|END_ACTION|>",
        "",  # by the package of the authors
        "cohere_command4",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "cohere-melody",
    ),
    "harmony": Names("<|call|>", "", "gpt-oss", "openai-gpt-oss-120b", "openai-harmony"),
    "qwen3-coder": Names("</tool_call>", "qwen3_coder", "qwen3_coder", "Qwen3-Coder"),
    "glm-4.5": Names("</tool_call>", "glm45", "glm45", "GLM-4.6"),
    "minimax-m2": Names("</minimax:tool_call>", "minimax_m2", "minimax-m2", "MiniMax-M2"),
    "llama-3": Names("; ", "llama3_json", "llama3", "meta-llama-Llama-3.1-8B-Instruct"),
    "llama-4": Names(")]", "llama4_pythonic", "pythonic"),
    "lfm-2": Names("<|tool_call_end|>", "lfm2", "lfm2", "LFM2.5-Instruct"),
    "gemma-4": Names("<tool_call|>", "gemma4", "gemma4", "google-gemma-4-31B-it"),
    "apertus": Names("<|tools_suffix|>", "apertus", "apertus2509", "Apertus-8B-Instruct"),
    "granite": Names("]", "granite", "", "ibm-granite-granite-3.3-2B-Instruct"),
    "phi-4": Names("<|/tool_call|>", "phi4_mini_json"),
    "seed": Names("</seed:tool_call>", "seed_oss", "", "ByteDance-Seed-OSS"),
    "nemotron": Names("</TOOLCALL>", "", "", "NVIDIA-Nemotron-Nano-v2"),
    "tool-calls-list": Names("</tool_calls>", "", "", "Apriel-1.6-15b-Thinker-fixed"),
    "function-tag": Names("</function>", "", "", "meetkai-functionary-medium-v3.1"),
}


def ours(name: str, answer: str, text: str) -> Calls:
    """Returns the calls that are complete."""
    found = read(bound(name), [answer.replace(SLOT, text)])
    calls = zip(found.calls, found.complete, strict=True)
    return [(call, json.loads(arguments)) for (_, call, arguments), whole in calls if whole]


class EveryToken(dict[str, int]):
    """A vocabulary that has an id for any text."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, 1000 + len(self))

    def get(self, text: str, default: Any = None) -> int:
        return self[text]

    def __contains__(self, text: object) -> bool:
        return True


class Tokenizer:
    """Stands in for the checkpoint's: a token per character."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()
    bos_token_id, eos_token_id = 1, 0

    def __init__(self) -> None:
        self.vocab = EveryToken()

    def get_vocab(self) -> EveryToken:
        return self.vocab

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def encode(self, text: str, **options: Any) -> list[int]:
        return [self.vocab[each] for each in text]

    def decode(self, ids: list[int], **options: Any) -> str:
        texts = {number: text for text, number in self.vocab.items()}
        return "".join(texts[each] for each in ids)


def vllm_parser() -> Parser:
    """Raises ImportError."""
    protocol: Any = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    parsers: Any = import_module("vllm.tool_parsers")

    def parse(name: str, answer: str, text: str) -> Calls:
        answer = answer.replace(SLOT, text)
        message = {"role": "user", "content": "x"}
        request = protocol.ChatCompletionRequest(model="m", messages=[message], tools=TOOLS)
        kind = parsers.ToolParserManager.get_tool_parser(FORMATS[name].vllm)
        parser = kind(Tokenizer(), request.tools)
        found = parser.extract_tool_calls(answer, parser.adjust_request(request) or request).tool_calls
        return [(each.function.name, json.loads(each.function.arguments)) for each in found]

    return parse


def sglang_parser() -> Parser:
    """Raises ImportError."""
    protocol: Any = import_module("sglang.srt.entrypoints.openai.protocol")
    parsers: Any = import_module("sglang.srt.function_call.function_call_parser")

    def parse(name: str, answer: str, text: str) -> Calls:
        detector = parsers.FunctionCallParser.ToolCallParserEnum[FORMATS[name].sglang]()
        answer = answer.replace(SLOT, text)
        found = detector.detect_and_parse(answer, [protocol.Tool(**each) for each in TOOLS]).calls
        return [(each.name, json.loads(each.parameters)) for each in found]

    return parse


def authors_parser() -> Parser:
    """Of packages that are not here, asking raises ImportError."""
    parsers = {MISTRAL: mistral_common, "cohere-melody": cohere_melody, "openai-harmony": openai_harmony}

    def parse(name: str, answer: str, text: str) -> Calls:
        return parsers[FORMATS[name].authors](name, answer, text)

    return parse


def mistral_common(name: str, answer: str, text: str) -> Calls:
    """Under the vocabulary that the package brings, with the marks of the version that has this format."""
    tekken: Any = import_module("mistral_common.tokens.tokenizers.tekken")
    tools: Any = import_module("mistral_common.experimental.tools")
    (file,) = Path(tekken.__file__).parents[2].glob("data/tekken_240911.json")
    content = json.loads(file.read_text())
    special = list(tekken.Tekkenizer.DEPRECATED_SPECIAL_TOKENS)
    if name == "mistral":
        content["config"]["version"], content["image"] = "v11", None
        for mark in ("[ARGS]", "[CALL_ID]"):
            special.append({"rank": len(special), "token_str": mark, "is_control": True})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tekken.json")
        file.write_text(json.dumps(content | {"special_tokens": special}))
        tokenizer = tekken.Tekkenizer.from_file(file)
    marks = {each["token_str"] for each in special}
    tokens = []
    for part in re.split(f"({'|'.join(map(re.escape, (*marks, SLOT)))})", answer):
        if part in marks:
            tokens.append(tokenizer.get_special_token(part))
        else:
            tokens += tokenizer.encode(text if part == SLOT else part, bos=False, eos=False)
    _, calls = tools._split_content_and_tool_calls(tokens, tokenizer.get_special_token("[TOOL_CALLS]"))
    found = [each.function for each in tools._decode_tool_calls(calls, tokenizer)]
    return [(each.name.strip(), json.loads(each.arguments)) for each in found]


def cohere_melody(name: str, answer: str, text: str) -> Calls:
    melody: Any = import_module("cohere_melody")
    found = melody.PyFilter(melody.PyFilterOptions().cmd3()).process_full_text(answer.replace(SLOT, text))
    return [(each.name, json.loads(each.arguments or "{}")) for each in found.tool_calls]


def openai_harmony(name: str, answer: str, text: str) -> Calls:
    with tempfile.TemporaryDirectory() as folder:
        vocabulary_file(load_tokenizer(gpt_oss_folder(), {}), Path(folder))
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        harmony = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    tokens: list[int] = []
    for index, part in enumerate(answer.split(SLOT)):
        tokens += harmony.encode(text, disallowed_special=()) if index else ()
        tokens += harmony.encode(part, allowed_special="all")
    messages = harmony.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    return [
        (each.recipient.removeprefix("functions."), json.loads(each.content[0].text))
        for each in messages
        if each.recipient is not None
    ]


def llama_parser(server: str, templates: Path) -> Parser:
    """server: the program. templates: folder of chat templates."""
    (port,) = free_ports(1)

    def parse(name: str, answer: str, text: str) -> Calls:
        answer = answer.replace(SLOT, text)
        template = templates / f"{FORMATS[name].template}.jinja"
        message = _ask(server, port, template, answer)
        if message.get("reasoning_content"):  # the template has opened it
            message = _ask(server, port, template, f"</think>{answer}")
        found = [each["function"] for each in message.get("tool_calls", ())]
        return [(each["name"], json.loads(each["arguments"])) for each in found]

    return parse


def _ask(server: str, port: int, template: Path, answer: str) -> dict[str, Any]:
    """Returns the message that a server makes of an answer of its model. Raises OSError."""
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "parallel_tool_calls": True}
    with tempfile.TemporaryDirectory() as folder:
        model, address = Path(folder, "model.gguf"), f"http://127.0.0.1:{port}"
        write_model(model, answer)
        command = [server, "--model", model, "--jinja", "--chat-template-file", template, "--port", str(port)]
        options = ["--ctx-size", "16384", "--threads", "1", "--parallel", "1", "--no-warmup", "--temp", "0"]
        output = subprocess.DEVNULL
        with subprocess.Popen([*command, *options], stdout=output, stderr=output) as process:
            try:
                _await_health(process, f"{address}/health")
                request = urllib.request.Request(
                    f"{address}/v1/chat/completions",
                    json.dumps(body).encode(),
                    {"content-type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                    message: dict[str, Any] = json.load(response)["choices"][0]["message"]
                    return message
            finally:
                process.kill()


def _await_health(process: "subprocess.Popen[bytes]", address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise OSError("the server does not start")


def write_model(path: Path, answer: str) -> None:
    """Writes a Llama in GGUF that says an answer, as one token, and ends: behind any other token the answer
    is most probable, behind the answer the end."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), answer]
    embedding, head = np.zeros((2, len(tokens), SIZE), np.float32)
    embedding[:-1, 0] = embedding[-1, 1] = 1
    head[-1, 0] = head[2, 1] = 10
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(16384)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(SIZE)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 3 + [-100.0] * 256 + [-1e6])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1])  # unknown, control, bytes, normal
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", head)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(SIZE, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((SIZE, SIZE), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def judged(parse: Parser, name: str, text: str, expected: Calls) -> str:
    """Returns how many calls are read right; "error" or "not JSON" where reading fails. text: for SLOT."""
    try:
        found = parse(name, TRANSCRIPTS[name], text)
    except json.JSONDecodeError:
        return "not JSON"
    except Exception:  # a parser may raise anything
        return "error"
    return str(sum(mine == theirs for mine, theirs in zip(expected, found, strict=False)))


def cell(parse: Parser, name: str) -> str:
    """Returns what is read of a format's answer, and of the one with a mark in an argument."""
    mark, quoted = FORMATS[name].mark, copy.deepcopy(CALLS)
    quoted[0][1]["city"] = quoted[0][1]["city"].replace(SLOT, mark)
    return f"{judged(parse, name, SLOT, CALLS)}, {judged(parse, name, mark, quoted)}"


def columns(server: str | None) -> dict[str, tuple[Parser, Callable[[Names], str]]]:
    """Returns the parsers that can be asked, each with how it calls a format."""
    found: dict[str, tuple[Parser, Callable[[Names], str]]] = {
        "authors": (authors_parser(), lambda names: names.authors)
    }
    for title, make, name_of in (
        ("vLLM", vllm_parser, lambda names: names.vllm),
        ("SGLang", sglang_parser, lambda names: names.sglang),
    ):
        try:
            found[title] = make(), name_of
        except ImportError as error:
            print(f"without {title}: {error}", file=sys.stderr)
    if server is not None:
        templates = folder_of_templates()
        if templates is None:
            raise SystemExit("the chat templates cannot be downloaded")
        found["llama.cpp"] = llama_parser(server, templates), lambda names: names.template
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--llama-server", metavar="FILE", help="the server of llama.cpp")
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help="default: all")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    asked = columns(options.llama_server)
    print("|", " | ".join(("format", "here", *asked)), "|")
    print("|", " | ".join(["---"] * (2 + len(asked))), "|")
    for name in options.formats or FORMATS:
        cells = [f"`{name}`", cell(ours, name)]
        for parse, name_of in asked.values():
            other = name_of(FORMATS[name])
            title = "" if other == FORMATS[name].template else f"`{other}` "
            cells.append(f"{title}{cell(parse, name)}" if other else "-")
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
