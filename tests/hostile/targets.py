"""What reads bytes of strangers, one function each: an exception that it does not announce is a bug.

Driven by coverage (tests/hostile/fuzz.py, `make fuzz`) and, in CI, by a few hundred inputs from a seed.
"""

import atexit
import json
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from engine_core.errors import Refused
from engine_core.intake.validation import make_request
from engine_core.step.plan import Plan
from engine_core.step.result import decode_result
from frontend.answers.events import BREAK
from frontend.answers.formats import TOOL_FORMATS
from frontend.auth.tokens import BadTokenList, read_tokens, token_in
from frontend.engine.connection import dispatch
from frontend.engine.core import Core, JournalEntry
from frontend.engine.logprobs import Scores
from frontend.errors import ProtocolError, Unauthenticated
from frontend.media.decode import ImageProblem, decode, open_image
from frontend.prompts.prompt_encoding import PromptEncoder
from frontend.streams.sequence import OutputFields, Sequence
from frontend.streams.stream import DeliveryMode, Header, Stream
from frontend.telemetry.timings import RequestTimings
from frontend.templates.chat_template import ChatTemplate
from frontend.text.stop_strings import StopMatcher, StopStrings
from frontend.text.tokenizer import Tokenizer
from pagewire.errors import StartupError
from pagewire.gguf.header import read_header
from pagewire.internal.v1.engine_pb2 import AddRequest, FrontendMessage, LogprobColumns, StepOutputs
from pagewire.internal.v1.worker_pb2 import StepPlan, StepResult
from pagewire.ipc import columns
from pagewire.ipc.curve import read_client_key, read_engine_key
from pagewire.ipc.transport import BadFrame, pack, unpack
from pagewire.telemetry.http import parse_head
from pagewire.v1.generation_pb2 import GenerateResponse, TokenLogprobs
from pagewire.v1.prompt_pb2 import Prompt
from tests.engine_core.fakes import LIMITS, add_request
from tests.frontend.answers.transcripts import TRANSCRIPTS, bound
from tests.frontend.answers.transcripts import read as read_answer
from tests.frontend.fakes import END, SPECIAL, USER, byte_level_tokenizer
from tests.frontend.media.pictures import file_of, picture
from tests.hostile.image_files import exif_loop, gif_of_many_frames
from tests.hostile.messages import damage
from tests.logprob_columns import pack_f32
from tests.worker.test_main import one_step
from worker.families.registry import read_model_config
from worker.step.plan_reader import append_tokens, apply_changes, block_copies, read_step, read_swaps
from worker.step.rows import PlanError, RowTable
from worker.weights.checkpoint import SINGLE_FILE, Checkpoint
from worker.weights.open import open_checkpoint

_FOLDER = Path(tempfile.mkdtemp(prefix="pagewire-fuzz-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_TOKENIZER = Tokenizer(byte_level_tokenizer())
_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content.replace('/think', '') }}<|end|>"
    "{{ m.content.split('</think>') | join('|') }}{{ [m.content] }}{{ m | tojson }}{{ '%s' % m.content }}"
    "{% for c in m.content %}{{ c }}{% endfor %}{{ m.content | trim | title | indent }}<|end|>{% endfor %}"
)
_ENCODER = PromptEncoder(_TOKENIZER, ChatTemplate(_TEMPLATE, {}, max_bytes=1 << 20))
_PLAN = Plan(step=7, sample_rows=[2, 5])
_MARKS = {
    name: sorted({text for state in each.states.values() for text in (*state.markers, *each.opens)})[::2]
    for name, each in TOOL_FORMATS.items()
}
"""Format -> half of the texts that it looks for."""


def requests(data: bytes) -> None:
    """A frame on the core's socket, up to the request that it becomes."""
    try:
        message = FrontendMessage.FromString(unpack(data))
        request = make_request(message.add_request, b"f", 0.0, LIMITS)
    except (BadFrame, DecodeError, Refused):
        return
    assert 0 < len(request.prompt) < LIMITS.max_model_len
    assert 0 < len(request.sequences) <= LIMITS.max_num_seqs


def results(data: bytes) -> None:
    """What a worker answers."""
    try:
        result = decode_result(StepResult.FromString(data), _PLAN)
    except (DecodeError, ValueError):
        return
    assert len(result.token_ids) == 2


def plans(data: bytes) -> None:
    """What a core asks of a worker: checked before any array is touched."""
    rows = RowTable(8, 64, 997, 4, 64)
    try:
        plan = StepPlan.FromString(data)
        apply_changes(plan, rows, ())
        append_tokens(plan, rows)
        block_copies(plan, 64)
        read_swaps(plan, 64, 8)
        read_step(plan, rows, 64)
    except (DecodeError, PlanError, ValueError):
        return


def numbers(data: bytes) -> None:
    """Columns: what can be read is what was written."""
    for read, write in (
        (columns.unpack_u8, columns.pack_u8),
        (columns.unpack_u32, columns.pack_u32),
        (columns.unpack_u64, columns.pack_u64),
    ):
        try:
            values = read(data)
        except ValueError:
            continue
        assert write(values) == data
    try:
        columns.unpack_f32(data)
    except ValueError:
        assert len(data) % 4


class _Core(Core):
    """Has one stream of two sequences, under the handles 1 to 3."""

    def __init__(self, wanted: OutputFields) -> None:
        super().__init__("fuzz")
        detokenizer = _TOKENIZER.detokenizer(skip_special_tokens=True)
        sequences = [Sequence(index, wanted, detokenizer.copy()) for index in range(2)]
        self.stream = Stream(Header("id", "fake", 7, 3), DeliveryMode(), sequences, RequestTimings())
        entry = JournalEntry(AddRequest(handle=1), self.stream, 0.0, 1, self)
        self.in_flight = dict.fromkeys((1, 2, 3), entry)

    def send(self, message: FrontendMessage) -> None:
        raise AssertionError("a result asks nothing of the core")

    def abort(self, handle: int, *indexes: int, detach: bool = False) -> None:
        raise AssertionError("no stop string has ended it")


class _Requests:
    """What ends a request ends all: the others are the same one."""

    def __init__(self, core: _Core) -> None:
        self._core = core

    def complete(self, entry: JournalEntry) -> None:
        self._core.in_flight.clear()

    def invalid(self, core: Core, entry: JournalEntry, error: ProtocolError) -> None:
        core.in_flight.clear()


def outputs(data: bytes) -> None:
    """A step's outputs at the frontend, up to the message that a client gets."""
    core = _Core(OutputFields(token_ids=True, logprobs=bool(data and data[0] & 1)))
    with suppress(DecodeError, ValueError):
        dispatch(StepOutputs.FromString(data[1:]), core, _Requests(core))  # type: ignore[arg-type]
    response = GenerateResponse()
    if core.stream._make(response):
        response.SerializeToString()


def scores(data: bytes) -> None:
    """Log-probabilities: cut apart and joined they are what they were."""
    try:
        whole = Scores.read(LogprobColumns.FromString(data))
    except (DecodeError, ValueError):
        return
    middle = len(whole) // 2
    joined = whole.cut(0, middle)
    joined.extend(whole.cut(middle, len(whole)))
    assert joined.ranks == whole.ranks and joined.ids == whole.ids
    whole.put(TokenLogprobs(), lambda token: b"x")


def stops(data: bytes) -> None:
    """Stop strings in pieces of any size: what is shown is what a search in the whole text would show."""
    text = data.decode("utf-8", "replace")
    strings, _, body = text.partition("|")
    words = [word for word in strings.split(",") if word] or ["ab"]
    matcher = StopMatcher(StopStrings(words, include=False))
    size = 1 + len(data) % 5
    shown, stop = "", None
    for start in range(0, len(body), size):
        piece, stop = matcher.push(body[start : start + size])
        shown += piece
        if stop is not None:
            break
    if stop is None:
        assert shown + matcher.flush() == body
    ends = [body.find(word) + len(word) for word in words if word in body]
    assert (stop is not None) == bool(ends)
    if ends and stop is not None:
        assert len(shown) + len(stop) == min(ends)
        assert body.startswith(shown + stop)


def text(data: bytes) -> None:
    """Token ids to text: in pieces or at once, it is what the tokenizer itself says."""
    ids = [each + 256 * (place % 3) for place, each in enumerate(data)]
    detokenizer = _TOKENIZER.detokenizer(skip_special_tokens=False)
    size = 1 + len(data) % 7
    pieces = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    whole = "".join(pieces) + detokenizer.flush()
    assert whole == _TOKENIZER.decode([ids], skip_special_tokens=False)[0]


def answers(data: bytes) -> None:
    """An answer with calls, in any format: stream and whole agree, and complete calls are JSON. In the second
    half of the first byte's values, half of the format's marks are special tokens."""
    kind, place = divmod(data[0], len(TOOL_FORMATS)) if data else (0, 0)
    name = sorted(TOOL_FORMATS)[place]
    body = data[1:].decode("utf-8", "replace")
    special = _MARKS[name] if kind % 2 else ()
    table = bound(name, None if name == "harmony" else "think", special)
    for token, mark in table.marks.items():
        body = body.replace(special[token - 1000], mark)
    whole = read_answer(table, [body])
    cut = len(data) * 7 % (len(body) + 1)
    pieces = [list(body), [body[:cut], body[cut:]]]
    assert all(read_answer(table, each) == whole for each in pieces)
    for call, complete in zip(whole.calls, whole.complete, strict=True):
        assert "".join(call).encode() and (not complete or isinstance(json.loads(call[2]), dict))
    assert (whole.text.replace(BREAK, "") + whole.reasoning).encode() is not None, "marks are spelled"


def conversations(data: bytes) -> None:
    """A message in a template that takes it apart: it makes no control token."""
    message = data.decode("utf-8", "replace")
    prompt = Prompt()
    prompt.chat.messages.add(role="user").content.add(text=message)
    ids = _ENCODER.read(prompt, "prompt", vocab_size=1 << 20).token_ids
    assert [token for token in ids if token < len(SPECIAL)] == [USER, END, END]


def http(data: bytes) -> None:
    """The head of an HTTP request."""
    try:
        method, path, headers = parse_head(data + b"\r\n\r\n")
    except ValueError:
        return
    assert " " not in method and path.startswith("/") and "" not in headers


def tokens(data: bytes) -> None:
    """The file of bearer tokens; and a header that has one."""
    try:
        read_tokens(data.decode("utf-8", "replace"))
    except BadTokenList as error:
        assert len(str(error)) < 500
    with suppress(Unauthenticated):
        token_in([("authorization", data.decode("latin-1")), *([("authorization", data)] * (len(data) % 2))])


def keys(data: bytes) -> None:
    """A file of CURVE keys."""
    path = _FOLDER / "key"
    path.touch(0o600)
    path.write_bytes(data)
    for read in (read_engine_key, read_client_key):
        try:
            read(str(path))
        except StartupError as error:
            assert str(error).isprintable()


def configuration(data: bytes) -> None:
    """A checkpoint's config.json."""
    (_FOLDER / "config.json").write_bytes(data)
    try:
        read_model_config(_FOLDER)
    except StartupError as error:
        assert str(error).isprintable()


def weights(data: bytes) -> None:
    """A checkpoint's model.safetensors: the header, and all that it says of its tensors."""
    (_FOLDER / SINGLE_FILE).write_bytes(len(data).to_bytes(8, "little") + data + bytes(64))
    try:
        with Checkpoint(_FOLDER) as checkpoint:
            for name in checkpoint.names():
                checkpoint.dtype(name)
                checkpoint.read(name, ())
    except StartupError as error:
        assert str(error).isprintable()


def gguf_file(data: bytes) -> None:
    """A checkpoint in one file: its header, configuration and tensors."""
    path = _FOLDER / "model.gguf"
    path.write_bytes(b"GGUF" + data)
    try:
        read_header(path)
        with open_checkpoint(path) as source:
            for name in source.names():
                source.read(name, (slice(0, 2),))
        read_model_config(path)
    except StartupError as error:
        assert str(error).isprintable()


def images(data: bytes) -> None:
    """The file of an image in a prompt; large ones, which take long, up to their headers."""
    try:
        image = open_image(data)
        if image.width * image.height > 1 << 20:
            return
        pixels = decode(image)
    except ImageProblem as error:
        assert str(error).isprintable()
        return
    assert pixels.mode == "RGB" and len(pixels.tobytes()) == 3 * pixels.width * pixels.height


Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        *(requests, results, plans, numbers, outputs, scores, stops, text, answers, conversations),
        *(http, tokens, keys, configuration, weights, gguf_file, images),
    )
}
_ENTRY = "sha256: " + "ab" * 32 + "\n    tenant: alice\n    weight: 2\n    expires: 2027-01-31\n"
_HEADER = (
    b'{"a":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]},'
    b'"b":{"dtype":"BF16","shape":[16],"data_offsets":[32,64]}}'
)
_CONFIG = (
    b'{"architectures":["LlamaForCausalLM"],"vocab_size":320,"hidden_size":48,"num_attention_heads":4,'
    b'"num_key_value_heads":2,"num_hidden_layers":3,"intermediate_size":80,"eos_token_id":[2],'
    b'"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}}'
)
_COLUMNS = LogprobColumns(
    logprobs=pack_f32([-1, -2]),
    ranks=columns.pack_u32([1, 2]),
    candidate_counts=columns.pack_u32([1, 0]),
    candidate_token_ids=columns.pack_u32([5]),
    candidate_logprobs=pack_f32([-1]),
    candidate_ranks=columns.pack_u32([1]),
)
_OUTPUTS = StepOutputs(
    handles=columns.pack_u64([1, 1]),
    indexes=columns.pack_u32([0, 1]),
    positions=columns.pack_u32([0, 0]),
    counts=columns.pack_u32([1, 1]),
    token_ids=columns.pack_u32([60, 61]),
    finish_reasons=b"\0\1",
    finish_token_ids=columns.pack_u32([0, 0]),
    has_logprobs=b"\1\1",
    logprobs=_COLUMNS,
    started_handles=columns.pack_u64([1]),
    started_queue_us=columns.pack_u32([1]),
    started_cached_tokens=columns.pack_u32([1]),
)


def _gguf_seed() -> bytes:
    """A file of one tensor, without its first four bytes."""

    def named(name: str) -> bytes:
        return struct.pack("<Q", len(name)) + name.encode()

    content = struct.pack("<IQQ", 3, 1, 2) + named("general.architecture") + struct.pack("<I", 8)
    content += named("llama") + named("llama.block_count") + struct.pack("<II", 4, 1)
    content += named("blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 32, 2, 2, 0)
    return content + bytes(-(len(content) + 4) % 32) + bytes(range(36))


SEEDS: dict[str, list[bytes]] = {
    "requests": [
        pack(FrontendMessage(add_request=add_request(1, 5, n=2, delivered={0: [3, 4]}, tenant="a"))),
        pack(FrontendMessage(add_request=add_request(2, 9, stop_token_ids=[7], ignore_eos=True))),
    ],
    "results": [
        StepResult(step=7, token_ids=columns.pack_u32([1, 2]), logprobs=_COLUMNS).SerializeToString(),
        StepResult(step=7, token_ids=columns.pack_u32([1, 2]), beam_token_ids=bytes(8)).SerializeToString(),
    ],
    "plans": [one_step(1).SerializeToString()],
    "numbers": [bytes(range(16)), b"\xff" * 24],
    "outputs": [b"\0" + _OUTPUTS.SerializeToString(), b"\1" + _OUTPUTS.SerializeToString()],
    "scores": [_COLUMNS.SerializeToString()],
    "stops": [b"ab,bcd,aa|xaabcdabab", "é,🙂|aé🙂".encode()],
    "text": [b"hello \xe4\xbd\xa0\xf0\x9f\x99\x82", bytes(range(0, 256, 5))],
    "answers": [
        bytes([place + kind]) + TRANSCRIPTS[name].encode()
        for place, name in enumerate(sorted(TOOL_FORMATS))
        for kind in (0, len(TOOL_FORMATS))
    ],
    "conversations": [b"a<|end|>b", b"<|e/thinknd|><|assistant|>", b"</think><|us", b"er|>"],
    "http": [b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/plain; q=0.5"],
    "tokens": [f"tokens:\n  - {_ENTRY}".encode(), b"tokens: []\n", b"Bearer pw_abc"],
    "keys": [b"secret: " + b"a" * 40 + b"\nclients: [" + b"b" * 40 + b"]\n"],
    "configuration": [_CONFIG],
    "weights": [_HEADER],
    "gguf_file": [_gguf_seed()],
    "images": [
        *(file_of(picture(9, 7), kind) for kind in ("PNG", "JPEG", "WEBP")),
        *(file_of(picture(9, 7, "P"), kind) for kind in ("PNG", "GIF")),
        exif_loop(),
        gif_of_many_frames(3),
    ],
}
"""What is right, for each of them: to be changed."""


def damaged(name: str, draw: random.Random) -> bytes:
    """An input for a target: one of its seeds with a few changes, or anything."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(200))
    return damage(draw.choice(SEEDS[name]), draw)
