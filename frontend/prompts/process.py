"""A prompt process: tokenizes prompts, compiles grammars and fetches media, one request after the other,
within limits that the kernel enforces.

It communicates over standard input, a socket, and ends with its frontend. It is forked by a process which the
frontend has forked of itself after it had read the model's files (pagewire.host.standby). Where that cannot
be, it is started, and reads them.
"""

import os
import signal
import socket
from collections.abc import Sequence
from hashlib import sha256
from typing import BinaryIO

from frontend.errors import ServiceError
from frontend.fetching.fetch import Fetcher
from frontend.fetching.urls import media_hosts
from frontend.model.info import ModelInfo, load_model
from frontend.prompts.process_pool import LENGTH, Packed
from frontend.prompts.prompt_encoding import PromptEncoder, TokenizedPrompt, packed
from frontend.text.tokenizer_preflight import limit_memory
from pagewire import logs
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import reader_pb2
from pagewire.ipc.columns import pack_u32

CPU_LIMIT = 5.0
"""Seconds of CPU time per request. 2 MiB of text, the maximum, take about one."""
MEMORY = 2 << 30
"""Bytes of address space beyond those in use once the model's files are loaded. 2 MiB of text take 300 MB."""


NAME = b"reader"
"""Name of the main thread of a forked one, and of what forks it."""


def run(config: FrontendConfig) -> int:
    """Reads the model, and answers requests until standard input ends; returns the exit code."""
    return serve(config, load_model(config))


def serve(config: FrontendConfig, model: ModelInfo) -> int:
    """Answers requests until standard input ends; returns the exit code."""
    logs.setup("reader", config.log_level, config.log_format)
    pairs = None if model.scoring is None else model.scoring.template
    reading = PromptEncoder(model.tokenizer, model.chat_template, model.answers, pairs, model.media)
    fetcher = Fetcher(media_hosts(config.media_hosts))
    limit_memory(MEMORY)
    with socket.socket(fileno=os.dup(0)) as connection:
        _answer(connection.makefile("rb"), connection.makefile("wb"), reading, fetcher)
    return 0


def _answer(source: BinaryIO, sink: BinaryIO, reading: PromptEncoder, fetcher: Fetcher) -> None:
    while _answer_one(source, sink, reading, fetcher):
        pass  # nothing of a request is kept while the next one is awaited


def _answer_one(source: BinaryIO, sink: BinaryIO, reading: PromptEncoder, fetcher: Fetcher) -> bool:
    """Returns False at the end of the input."""
    request = _receive(source)
    if request is None:
        return False
    # The default action of SIGVTALRM ends the process, whatever it is doing.
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT)
    response, media = answer_to(request, reading, fetcher)
    answer = response.SerializeToString()
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    sink.write(LENGTH.pack(len(answer)) + answer)
    sink.write(media)
    sink.flush()
    return True


def answer_to(
    request: reader_pb2.ReadRequest, reading: PromptEncoder, fetcher: Fetcher
) -> tuple[reader_pb2.ReadResponse, Packed]:
    """Returns the response, and the bytes that follow it: Reading.media_bytes."""
    try:
        if request.HasField("prompt"):
            read = packed(_read(request.prompt, reading))
            return reader_pb2.ReadResponse(prompt=_reading(read)), read.packed_media
        return _do(request, reading, fetcher), b""
    except ServiceError as error:
        return reader_pb2.ReadResponse(error=_error(error)), b""


def _do(request: reader_pb2.ReadRequest, reading: PromptEncoder, fetcher: Fetcher) -> reader_pb2.ReadResponse:
    """Does a job without media. Raises ServiceError."""
    kind = request.WhichOneof("job")
    if kind == "pair":
        pair = reading.pair(request.pair)
        ids, second = pack_u32(pair.token_ids), pair.second_text
        return reader_pb2.ReadResponse(
            prompt=reader_pb2.Reading(token_ids=ids, truncated=pair.num_truncated, second_text=second)
        )
    if kind == "answer_form":
        return reader_pb2.ReadResponse(grammar=reading.grammar(request.answer_form))
    if kind == "media":
        files = fetcher.fetch_all(list(zip(request.media.paths, request.media.uris, strict=True)))
        digests = (sha256(file).digest() for file in files)
        return reader_pb2.ReadResponse(media=reader_pb2.FetchedMedia(files=files, digests=digests))
    if kind == "words":
        return _texts(reading.words(request.words.texts))
    return _texts(reading.continuations(request.continuations.texts))


def _error(error: ServiceError) -> reader_pb2.ReadError:
    return reader_pb2.ReadError(
        code=error.code,
        reason=error.reason,
        message=error.message,
        violations=error.violations,
        metadata=error.metadata,
    )


def _read(job: reader_pb2.ReadPrompt, reading: PromptEncoder) -> TokenizedPrompt:
    return reading.read(
        job.prompt,
        job.path,
        vocab_size=job.vocab_size,
        max_model_len=job.max_model_len if job.HasField("max_model_len") else None,
        offsets=job.offsets,
    )


def _reading(read: TokenizedPrompt) -> reader_pb2.Reading:
    return reader_pb2.Reading(
        token_ids=pack_u32(read.token_ids),
        text=read.text,
        starts=pack_u32(start for start, _ in read.offsets),
        ends=pack_u32(end for _, end in read.offsets),
        truncated=read.num_truncated,
        media_bytes=len(read.packed_media),
        media_tokens=read.num_media_tokens,
    )


def _texts(token_ids: Sequence[Sequence[int]]) -> reader_pb2.ReadResponse:
    return reader_pb2.ReadResponse(texts=reader_pb2.Readings(token_ids=map(pack_u32, token_ids)))


def _receive(source: BinaryIO) -> reader_pb2.ReadRequest | None:
    """Returns the next request; None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    data = source.read(size)
    return reader_pb2.ReadRequest.FromString(data) if len(data) == size else None
