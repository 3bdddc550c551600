"""A checkpoint that means harm: each file of it ends the start with one clear line, or is harmless.

In-process, except for those that could take the process with them.
"""

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from frontend.model.info import load_model as read_model
from frontend.text.tokenizer_files import TokenizerArchive
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from tests.checkpoints import make_checkpoint
from tests.frontend.fakes import byte_level_tokenizer, write_checkpoint
from worker.cpu.weights import OwnBits
from worker.families.registry import read_model_config
from worker.grammar.tokenizer import _described
from worker.startup.model import load_model
from worker.weights.checkpoint import INDEX_FILE, SINGLE_FILE

SEEDS = int(os.environ.get("PAGEWIRE_HOSTILE_FILES", "300"))
"""Damaged headers and configurations per test."""
MEMORY = 512 << 20
"""Bytes that a subprocess may have beyond what it has with its imports done."""
SECONDS = 60
"""No file takes one; this machine may be busy."""
ROOT = Path(__file__).parents[2]
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 3, 2**31, 2**32, 2**63, 10**30, 10**400, 1e308, -1e308, 0.5),
    *(float("nan"), float("inf"), float("-inf"), True, None, "4", [4], {}, "\x1b[2J\n", "x" * 100_000),
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint that is as it should be."""
    return make_checkpoint("llama", tmp_path_factory.mktemp("hostile") / "llama", num_hidden_layers=1)


@pytest.fixture
def broken(llama: Path, tmp_path: Path) -> Path:
    """A copy of it to be broken."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in llama.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def load(folder: Path) -> None:
    """As a worker does it, up to the last weight."""
    config = read_model_config(folder)
    initialize = worker_pb2.Initialize(model_path=str(folder), dtype="float32")
    device, bits = torch.device("cpu"), OwnBits("torch computes")
    load_model(config, initialize, device, lambda *_: None, lambda dtype: dtype, bits)


def refusal(act: Callable[[], object]) -> str:
    """The line that a person reads; fails when anything else comes, or nothing."""
    with pytest.raises(StartupError) as caught:
        act()
    line = str(caught.value)
    assert caught.value.why and len(line) < 3000 and line.isprintable()
    return line


def refused_or_fine(act: Callable[[], object]) -> bool:
    """Whether it was refused, by the right exception; anything else fails."""
    try:
        act()
    except StartupError as error:
        assert error.why and len(str(error)) < 3000 and str(error).isprintable()
        return True
    return False


def make_index(folder: Path, file_name: Any) -> None:
    (folder / SINGLE_FILE).rename(folder / "real.safetensors")
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    index = {"weight_map": {names[0]: "real.safetensors", names[1]: file_name}}
    (folder / INDEX_FILE).write_text(json.dumps(index))


# Where files are.


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


PLACES: dict[str, Callable[[Path], None]] = {
    "a FIFO": make_fifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link outside": lambda path: path.symlink_to("../secret"),
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a link to a FIFO": lambda path: (make_fifo(path.parent / "pipe"), path.symlink_to("pipe"))[-1],
}
FILES = ("model.safetensors", INDEX_FILE, "config.json", "generation_config.json")
SMALL_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


@pytest.mark.parametrize("place", PLACES)
def test_files_that_are_somewhere_else_or_no_files(broken: Path, place: str) -> None:
    """None of them is opened: the FIFO would never answer, /dev/zero never end."""
    (broken.parent / "secret").write_text("{}")
    for name in FILES:
        path = broken / name
        kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        if name == INDEX_FILE:
            (broken / SINGLE_FILE).rename(broken / "away")
        PLACES[place](path)
        assert name in refusal(lambda: load(broken))
        path.rmdir() if place == "a folder" else path.unlink()
        (broken / "pipe").unlink(missing_ok=True)
        if name == INDEX_FILE:
            (broken / "away").rename(broken / SINGLE_FILE)
        if kept is not None:
            path.write_bytes(kept)
    load(broken)


@pytest.mark.parametrize("place", PLACES)
def test_small_files_that_are_somewhere_else_or_no_files(tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").write_text("{}")
    for number, name in enumerate(SMALL_FILES):
        folder = write_checkpoint(tmp_path / str(number), chat_template_jinja=None)
        (folder / name).unlink(missing_ok=True)
        PLACES[place](folder / name)
        (folder.parent / "secret").write_text("{}")
        assert name in refusal(lambda folder=folder: read_model(FrontendConfig(model=str(folder))))


def test_get_tokenizer_sends_no_file_of_another_folder(tmp_path: Path) -> None:
    """A checkpoint whose vocab.json is a link to a secret would hand it to every client."""
    folder = write_checkpoint(tmp_path / "model")
    (tmp_path / "secret").write_text("the keys")
    (folder / "vocab.json").symlink_to("../secret")
    archive = TokenizerArchive(folder, None)
    assert "outside the folder" in refusal(lambda: archive.data)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "/dev/zero", "a/../../secret", "", ".", "x\0y", "x" * 5000, "pipe"]
)
def test_an_index_that_names_something_else(broken: Path, name: str) -> None:
    (broken.parent / "secret").write_bytes(b"")
    make_fifo(broken / "pipe")
    make_index(broken, name)
    refusal(lambda: load(broken))


# What is in them.


def header(tensors: Any, size: int | None = None, data: bytes = b"") -> bytes:
    """A safetensors file. size: what it says of its header; None: the truth."""
    content = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(content) if size is None else size) + content + data


def tensor(*offsets: int, dtype: str = "F32", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HEADERS: dict[str, bytes] = {
    "no header": header(b"", 0),
    "a length of 2^63": header({}, 1 << 63),
    "a length of 2^64 - 1": header({}, (1 << 64) - 1),
    "a length beyond the file": header({}, 3),
    "overlapping": header({"a": tensor(0, 8), "b": tensor(4, 12)}, data=bytes(12)),
    "a hole": header({"a": tensor(0, 8), "b": tensor(12, 20)}, data=bytes(20)),
    "out of range": header({"a": tensor(0, 8)}, data=bytes(4)),
    "more data than tensors": header({"a": tensor(0, 8)}, data=bytes(100)),
    "negative offsets": header({"a": tensor(-8, 0)}, data=bytes(8)),
    "backwards": header({"a": tensor(8, 0)}, data=bytes(8)),
    "huge offsets": header({"a": tensor(0, 1 << 64)}, data=bytes(8)),
    "of odd length": header({"a": tensor(0, 7)}, data=bytes(7)),
    "another shape than bytes": header({"a": tensor(0, 8, shape=(3,))}, data=bytes(8)),
    "a shape whose product overflows": header({"a": tensor(0, 0, shape=(1 << 33, 1 << 33))}),
    "a negative shape": header({"a": tensor(0, 8, shape=(-2,))}, data=bytes(8)),
    "an unknown type": header({"a": tensor(0, 8, dtype="OBJECT")}, data=bytes(8)),
    "a type that is no word": header({"a": tensor(0, 8) | {"dtype": 3}}, data=bytes(8)),
    "twice the same name": header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        data=bytes(8),
    ),
    "deep JSON": header(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a list": header([]),
    "no UTF-8": header(b'{"\xff": 1}'),
    "a pickle": b"\x80\x04\x95" + bytes(100),
    "100,000 tensors": header(
        {f"t{i}": tensor(4 * i, 4 * i + 4, shape=(1,)) for i in range(100_000)}, data=bytes(400_000)
    ),
    "odd names": header({"\x1b[2J\n" + "x" * 10_000: tensor(0, 8), "": tensor(8, 16)}, data=bytes(16)),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_lies(broken: Path, case: str) -> None:
    (broken / SINGLE_FILE).write_bytes(HEADERS[case])
    line = refusal(lambda: load(broken))
    assert "model.safetensors" in line or "lacks tensor" in line


def test_headers_with_flipped_bits_and_files_that_end_too_early(broken: Path) -> None:
    """What a flip in a header cannot do is to go unnoticed and leave a wrong model: a name, a shape or an
    offset does not fit. (One in the order of its fields or in a comment may.)"""
    path = broken / SINGLE_FILE
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    draw = random.Random(28)
    refused = 0
    for number in range(SEEDS):
        content = bytearray(whole)
        if number % 3 == 0:
            del content[draw.randrange(len(content)) :]
        else:
            for _ in range(draw.choice((1, 1, 1, 5))):
                content[draw.randrange(8 + size)] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        refused += refused_or_fine(lambda: load(broken))
    assert refused > SEEDS * 0.9


def test_configurations_with_values_that_make_no_sense(broken: Path) -> None:
    """Every number of config.json, replaced by each of many: refused by a line, or harmless."""
    path = broken / "config.json"
    whole = json.loads(path.read_text())
    whole["rope_scaling"] = {"rope_type": "yarn", "factor": 2.0}
    whole.pop("rope_parameters", None)
    draw = random.Random(29)
    names = [*whole, "head_dim", "attention_bias", "eos_token_id", "quantization_config"]
    for _ in range(SEEDS):
        values = {**whole, draw.choice(names): draw.choice(NUMBERS)}
        rope = {
            **whole["rope_scaling"],
            draw.choice(["factor", "beta_fast", "rope_type"]): draw.choice(NUMBERS),
        }
        values["rope_scaling"] = draw.choice([rope, whole["rope_scaling"]])
        path.write_text(json.dumps(values))
        refused_or_fine(lambda: read_model_config(broken))
    for deep in (b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"1" * 10_000, b"\xff"):
        for name in ("config.json", "generation_config.json", INDEX_FILE):
            (broken / SINGLE_FILE).unlink(missing_ok=True)
            path.write_text(json.dumps(whole))
            (broken / INDEX_FILE).write_text("{}")
            (broken / name).write_bytes(deep)
            assert name in refusal(lambda: load(broken))
            (broken / "generation_config.json").unlink(missing_ok=True)


def test_sampling_defaults_and_ids_that_make_no_sense(tmp_path: Path) -> None:
    names = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "do_sample")
    draw = random.Random(30)
    tokenizer = byte_level_tokenizer().to_str()
    for _ in range(SEEDS // 3):
        generation = {draw.choice(names): draw.choice(NUMBERS)}
        own = {"bos_token_id": draw.choice(NUMBERS), "pad_token_id": draw.choice(NUMBERS)}
        tokens = {"bos_token": draw.choice(NUMBERS), "chat_template": [draw.choice(NUMBERS)]}
        folder = write_checkpoint(
            tmp_path,
            tokenizer_json=tokenizer,
            generation_config_json=generation,
            config_json=own,
            tokenizer_config_json=tokens,
            chat_template_jinja=None,
        )
        refused_or_fine(lambda folder=folder: read_model(FrontendConfig(model=str(folder))))


# Tokenizers.


def changed(**parts: Any) -> str:
    """A tokenizer.json that is in order but for these parts; those of its model by model_NAME."""
    content = json.loads(byte_level_tokenizer().to_str())
    for name, value in parts.items():
        (content["model"] if name.startswith("model_") else content)[name.removeprefix("model_")] = value
    return json.dumps(content)


def vocabulary(**more: Any) -> dict[str, Any]:
    return {**json.loads(byte_level_tokenizer().to_str())["model"]["vocab"], **more}


def added(token_id: int, content: str = "<x>") -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": token_id, "content": content, "special": True, **flags}]


REFUSED_TOKENIZERS: dict[str, str] = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "not one": "{}",
    "no model": changed(model_type="Nonsense"),
    "a negative id": changed(model_vocab=vocabulary(foo=-5)),
    "an id beyond 32 bits": changed(model_vocab=vocabulary(foo=2**40)),
    "an id that is no integer": changed(model_vocab=vocabulary(foo=1.5)),
    "merges that lie": changed(model_merges=[["zz", "qq"]]),
    "merges of numbers": changed(model_merges=[1, 2]),
    "an added id below 0": changed(added_tokens=added(-1)),
    "a pattern that is none": changed(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "((("}, "behavior": "Isolated", "invert": False}
    ),
    "no unknown token": changed(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "zz"}),
    "an empty unigram": changed(model={"type": "Unigram", "vocab": [], "unk_id": 0, "byte_fallback": False}),
    "a prefix longer than its tokens": changed(model_continuing_subword_prefix="#" * 10),
    "a special token from nowhere": changed(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
}
HARMLESS_TOKENIZERS: dict[str, str] = {
    "two tokens of one id": changed(model_vocab=vocabulary(foo=5, bar=5)),
    "the highest id": changed(model_vocab=vocabulary(foo=2**32 - 1)),
    "an added id far away": changed(added_tokens=added(2**32 - 1)),
    "an added token without text": changed(added_tokens=added(400, "")),
    "padding to 2^40": changed(
        padding={
            "strategy": {"Fixed": 2**40},
            "direction": "Right",
            "pad_to_multiple_of": 0,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        }
    ),
    "truncation to nothing": changed(
        truncation={"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}
    ),
}
CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
"""Of a normalizer: tokenizers 0.22 aborts the process that reads it."""


@pytest.mark.parametrize("case", REFUSED_TOKENIZERS)
def test_a_tokenizer_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    folder = write_checkpoint(tmp_path / "model", tokenizer_json=REFUSED_TOKENIZERS[case])
    assert "tokenizer.json" in refusal(lambda: read_model(FrontendConfig(model=str(folder))))


MANY = 3 << 19
LARGE: dict[str, tuple[str, str, str, int]] = {
    "a vocabulary": ("tokenizer.json", '{"model":{"type":"BPE","vocab":{', '"q{0}":{0}', MANY + 2),
    "merges": ("tokenizer.json", '{"model":{"type":"BPE","merges":[', '"t h"', MANY + 2),
    "merges in pairs": ("tokenizer.json", '{"model":{"type":"BPE","merges":[', '["t","h"]', MANY + 2),
    "a unigram model": ("tokenizer.json", '{"model":{"type":"Unigram","vocab":[', '["q{0}",-1.0]', MANY + 2),
    "added tokens": ("tokenizer.json", '{"added_tokens":[', '{{"id":{0},"content":"q{0}"}}', MANY // 5 + 1),
    "normalizers": ("tokenizer.json", '{"normalizer":{"normalizers":[', '{{"type":"NFC"}}', MANY // 4 + 1),
    "added tokens beside it": ("added_tokens.json", "{", '"q{0}":{0}', MANY + 2),
    "a configuration": ("tokenizer_config.json", '{"added_tokens_decoder":{', '"{0}":{{}}', MANY // 4 + 1),
    "an old vocabulary": ("vocab.json", "{", '"q{0}":{0}', MANY + 2),
    "old merges": ("merges.txt", "", "t h\n", MANY + 1),
    "tekken": ("tekken.json", '{"vocab":[', "{{}}", MANY // 4 + 1),
}
"""A file, its beginning, and so many items behind that: more than any tokenizer has, each in few bytes."""


@pytest.mark.parametrize("case", LARGE)
def test_a_tokenizer_of_a_hostile_size(tmp_path: Path, case: str) -> None:
    """Refused before it is parsed, by the frontend and by the worker."""
    name, beginning, item, count = LARGE[case]
    old = name in ("vocab.json", "merges.txt", "tekken.json")
    folder = write_checkpoint(tmp_path / "model", **({"tokenizer_json": None} if old else {}))
    if name in ("vocab.json", "merges.txt"):
        byte_level_tokenizer().model.save(str(folder))
    items = ("" if name == "merges.txt" else ",").join(map(item.format, range(count)))
    ends = {"{": "}", "[": "]"}
    end = "".join(ends[each] for each in reversed(beginning) if each in ends)
    (folder / name).write_text(beginning + items + end)
    why = refusal(lambda: read_model(FrontendConfig(model=str(folder))))
    assert name in why and f"more than {MANY}" in why, "it has been parsed"
    if not old:
        with pytest.raises(StartupError, match=f"more than {MANY}"):
            _described(folder)


@pytest.mark.parametrize("case", HARMLESS_TOKENIZERS)
def test_a_tokenizer_that_is_odd(tmp_path: Path, case: str) -> None:
    """What its tokens say is the checkpoint's affair; nothing dies of it."""
    folder = write_checkpoint(tmp_path / "model", tokenizer_json=HARMLESS_TOKENIZERS[case])
    tokenizer = read_model(FrontendConfig(model=str(folder))).tokenizer
    ids = tokenizer.encode("hello the world", add_special_tokens=True).token_ids
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    for token in (*ids, 0, 271, 400, 2**32 - 1):
        detokenizer.push([token])
    tokenizer.decode([[1, 400, 2**32 - 1]], skip_special_tokens=False)


# Processes.


def start_frontend(folder: Path) -> tuple[int, str]:
    """`pagewire frontend` with a limit of time: exit code and standard error."""
    limit = f'ulimit -t {SECONDS}; exec "$@"'
    done = subprocess.run(
        [
            "sh",
            "-c",
            limit,
            "sh",
            sys.executable,
            "-m",
            "pagewire",
            "frontend",
            "--port=0",
            "--model",
            folder,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * SECONDS,
    )
    return done.returncode, done.stderr


def test_a_tokenizer_that_aborts_the_process(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", tokenizer_json=changed(normalizer=CHARSMAP))
    code, error = start_frontend(folder)
    assert code == 1 and "Traceback" not in error
    assert "cannot read the tokenizer" in error and "tokenizer.json" in error and "SIGABRT" in error


TRAP = """
import os, sys
opened = []
def see(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append(os.fsdecode(arguments[0]))
    if event.startswith(("pickle.", "exec", "compile")) and armed:
        raise SystemExit(f"{event} of {arguments}")
armed = False
from pathlib import Path
import torch
from frontend.model.info import load_model as read_model
from pagewire.config import FrontendConfig
from tests.hostile.test_checkpoints import load
folder = Path(sys.argv[1])
read_model(FrontendConfig(model=str(folder)))  # imports what is imported late
load(folder)
sys.addaudithook(see)
armed = True
read_model(FrontendConfig(model=str(folder)))
load(folder)
armed = False
inside = str(folder.resolve())
code = (".py", ".bin", ".pt", ".pkl")
strange = [name for name in opened if name.startswith(inside) and name.endswith(code)]
outside = [name for name in opened if not name.startswith((inside, "/proc", "/sys"))]
print(strange + outside)
"""


def test_nothing_in_a_folder_is_run(broken: Path) -> None:
    """Pickles, modules and what auto_map names lie there unopened, and nothing outside is opened. (Seen are
    files that Python opens; safetensors and tokenizers open by themselves what they are handed.)"""
    marker = broken / "marker"
    bomb = f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n"
    pickled = b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "__init__.py"):
        (broken / name).write_text(bomb)
    for name in ("pytorch_model.bin", "model.pt", "scheduler.pkl", "optimizer.pt", "training_args.bin"):
        (broken / name).write_bytes(pickled)
    auto_map = {
        "AutoConfig": "configuration_evil.EvilConfig",
        "AutoModelForCausalLM": "modeling_evil.Evil",
        "AutoTokenizer": ["tokenization_evil.Evil", None],
    }
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((broken / name).read_text())
        values |= {"auto_map": auto_map, "trust_remote_code": True, "custom_pipelines": auto_map}
        (broken / name).write_text(json.dumps(values))
    done = subprocess.run(
        [sys.executable, "-c", TRAP, str(broken)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    assert not marker.exists()


LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from pagewire.errors import StartupError
from tests.hostile.test_checkpoints import MEMORY, SECONDS, load
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
for folder in map(Path, sys.argv[1:]):
    try:
        load(folder)
    except StartupError as error:
        print(str(error)[:200])
    else:
        print("fine")
"""


def test_the_worst_take_little_memory(broken: Path) -> None:
    """A configuration of a model that no machine holds, and headers of 100,000 tensors."""
    values = json.loads((broken / "config.json").read_text())
    cases = []
    for number, changes in enumerate(
        (
            {"num_hidden_layers": 10**9},
            {"vocab_size": 2**31 - 1, "hidden_size": 2**20},
            {"intermediate_size": 2**31 - 1},
            {"num_hidden_layers": 4096},
            {"max_position_embeddings": 2**31 - 1},
        )
    ):
        folder = broken.parent / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(values | changes))
        (folder / SINGLE_FILE).symlink_to(folder / "weights")
        (folder / "weights").write_bytes((broken / SINGLE_FILE).read_bytes())
        cases.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, *cases],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *refused, fine = done.stdout.splitlines()
    assert len(refused) == 4 and "fine" not in refused, done.stdout
    assert fine == "fine", "a long context costs nothing before there is a cache"
