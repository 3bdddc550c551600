"""Processes that read prompts, for what a thread should not do: they can be killed.

Tokenizers and chat templates come with checkpoints, and prompts from strangers; together they may take any
time and any memory, in calls into C that no thread can be called back from. A reader process has a limit of
both (frontend.prompt_process); one that exceeds them ends, its request is refused, and the next one gets a
new process.
"""

import asyncio
import logging
import signal
import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from frontend.errors import InternalError, InvalidRequest, ServiceError
from frontend.text.prompt_encoding import TokenizedPrompt
from pagewire.config import FrontendConfig
from pagewire.host import spawn as process
from pagewire.host.exit_codes import describe_exit
from pagewire.internal.v1 import reader_pb2
from pagewire.ipc.columns import unpack_u32, unpack_u32_array

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
"""What goes before each message."""
LONGEST = 1 << 28
"""Bytes of an answer: the text of a prompt, and twelve bytes per token."""
WALL_LIMIT = 120.0
"""Seconds from request to answer: only a process that is stopped needs this; those that compute have a limit
of their own, in seconds of CPU."""


class PromptProcesses:
    """At most so many processes, started when there is something to read."""

    def __init__(self, config: FrontendConfig) -> None:
        self._arguments = [
            "reader",
            f"--model={config.model}",
            f"--chat-template={config.chat_template}",
            f"--max-request-bytes={config.max_request_bytes}",
            f"--log-level={config.log_level}",
        ]
        self._free = asyncio.Semaphore(config.tokenizer_threads)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._jobs: set[asyncio.Task[reader_pb2.ReadResponse]] = set()

    def close(self) -> None:
        """Kills all of them; what they were doing fails."""
        for job in self._jobs:
            job.cancel()
        for running in (*self._idle, *self._busy):
            running.kill()

    async def read_prompt(self, job: reader_pb2.ReadPrompt) -> TokenizedPrompt:
        """See Reading.read. Raises ServiceError."""
        answer = await self._ask(reader_pb2.ReadRequest(prompt=job), job.path)
        read = answer.prompt
        return TokenizedPrompt(
            token_ids=unpack_u32_array(read.token_ids),
            text=read.text,
            offsets=list(zip(unpack_u32(read.starts), unpack_u32(read.ends), strict=True)),
        )

    async def read_words(self, words: Sequence[str], path: str) -> list[list[int]]:
        """See Reading.words. Raises ServiceError, naming the path."""
        request = reader_pb2.ReadRequest(words=reader_pb2.Texts(texts=words))
        return _lists(await self._ask(request, path))

    async def read_continuations(self, texts: Sequence[str], path: str) -> list[list[int]]:
        """See Reading.continuations. Raises ServiceError, naming the path."""
        request = reader_pb2.ReadRequest(continuations=reader_pb2.Texts(texts=texts))
        return _lists(await self._ask(request, path))

    async def _ask(self, request: reader_pb2.ReadRequest, path: str) -> reader_pb2.ReadResponse:
        """One answer. A client that goes away does not take the process with it: it finishes its job. One
        that goes before its turn leaves no job behind."""
        await self._free.acquire()
        job = asyncio.create_task(self._run(request, path), name="reader")
        self._jobs.add(job)
        job.add_done_callback(self._end)
        try:
            answer = await asyncio.shield(job)
        except asyncio.CancelledError:
            job.add_done_callback(_look_at)
            raise
        if answer.HasField("error"):
            raise _service_error(answer.error)
        return answer

    async def _run(self, request: reader_pb2.ReadRequest, path: str) -> reader_pb2.ReadResponse:
        """With one of the places in _free."""
        running = self._next_idle() or await _Process.start(self._arguments)
        self._busy.add(running)
        try:
            answer = await asyncio.wait_for(running.ask(request.SerializeToString()), WALL_LIMIT)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, DecodeError):
            raise await running.autopsy(path) from None
        except BaseException:  # it is in the middle of something
            running.kill()
            raise
        finally:
            self._busy.discard(running)
        self._idle.append(running)
        return answer

    def _next_idle(self) -> "_Process | None":
        """One that lives. Who died while it had nothing to do died of no request."""
        while self._idle:
            running = self._idle.pop()
            if running.lives:
                return running
        return None

    def _end(self, job: "asyncio.Task[reader_pb2.ReadResponse]") -> None:
        self._jobs.discard(job)
        self._free.release()


class _Process:
    """One reader."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    @classmethod
    async def start(cls, arguments: Sequence[str]) -> "_Process":
        """Starts it; it reads the model's files while its first request waits."""
        child = await asyncio.create_subprocess_exec(
            *process.command(arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=process.child_environment(),
        )
        return cls(child)

    async def ask(self, request: bytes) -> reader_pb2.ReadResponse:
        """Sends a request and waits for its answer. Raises IncompleteReadError, ConnectionError: it died."""
        writer, reader = self._child.stdin, self._child.stdout
        assert writer is not None and reader is not None
        writer.write(LENGTH.pack(len(request)) + request)
        await writer.drain()
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if size > LONGEST:
            raise DecodeError
        return reader_pb2.ReadResponse.FromString(await reader.readexactly(size))

    @property
    def lives(self) -> bool:
        """As far as we have heard."""
        return self._child.returncode is None

    def kill(self) -> None:
        """Ends it. Idempotent."""
        if self.lives:
            self._child.kill()

    async def autopsy(self, path: str) -> ServiceError:
        """What a client is told of the request that it died of."""
        reader = self._child.stdout
        assert reader is not None
        if not reader.at_eof():  # one that has closed its pipe is about to end; this one only does not answer
            self.kill()
        code = await self._child.wait()
        if code >= 0:  # it could not start, or has a bug: its own lines are in the log
            log.error("a reader has failed: %s", describe_exit(code))
            return InternalError()
        log.warning("a reader is gone in the middle of a prompt: %s", describe_exit(code))
        what = "time" if code == -signal.SIGVTALRM else "memory or time"
        return InvalidRequest({path: f"takes too much {what} to tokenize"})


def _lists(answer: reader_pb2.ReadResponse) -> list[list[int]]:
    return [unpack_u32(column) for column in answer.texts.token_ids]


def _service_error(error: reader_pb2.ReadError) -> ServiceError:
    """The error that the reader raised, as far as a client can see."""
    made = ServiceError(error.message, violations=dict(error.violations), metadata=dict(error.metadata))
    made.code, made.reason = error.code, error.reason
    return made


def _look_at(job: "asyncio.Task[reader_pb2.ReadResponse]") -> None:
    """Nobody waits for it any more: how it ends does not matter."""
    if not job.cancelled():
        job.exception()
