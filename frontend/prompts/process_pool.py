"""Processes that tokenize prompts which could occupy a thread for too long.

Tokenizers and chat templates come with checkpoints, and prompts from clients; together they may take any time
and memory, in calls into C that cannot be interrupted. A prompt process has limits for both
(frontend.prompts.process). When it exceeds them it dies, its request is refused, and the next request gets a
new process.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from frontend.call.turns import TenantJobs, TenantTurns
from frontend.errors import InternalError, InvalidRequest, MediaUnavailable, ServiceError
from frontend.fetching.fetch import TOO_LONG
from frontend.media.files import MEDIA_FIELDS
from pagewire.config import FrontendConfig
from pagewire.host import spawn as process
from pagewire.host.proc_stat import describe_exit
from pagewire.host.standby import Fork, Process
from pagewire.internal.v1 import reader_pb2

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
"""Prefix of each message: its length."""
LONGEST = 1 << 28
"""Bytes of a response: a prompt's text, and twelve bytes per token."""
Packed = bytes | bytearray
"""What follows a response: Reading.media_bytes."""
_PIECE = 1 << 18
"""Bytes of it that are copied in one go."""
WALL_LIMIT = 120.0
"""Seconds from request to response; only a suspended process exceeds them, since computing ones meet their
CPU limit first."""


class PromptProcesses:
    """A pool of processes, started on demand."""

    def __init__(
        self, config: FrontendConfig, fork: Fork | None = None, num_processes: int | None = None
    ) -> None:
        """fork: forks a process that has imported everything and read the model's files, in milliseconds.
        None: each process does that itself. num_processes: at most; None: as the threads of the tokenizer."""
        self._fork = fork
        self._arguments = [
            "reader",
            f"--model={config.model}",
            f"--tokenizer={config.tokenizer}",
            f"--hf-overrides={config.hf_overrides}",
            f"--chat-template={config.chat_template}",
            f"--tool-format={config.tool_format}",
            f"--reasoning-format={config.reasoning_format}",
            f"--pooling-type={config.pooling_type}",
            f"--score-template={config.score_template}",
            f"--score-tokens={config.score_tokens}",
            f"--max-request-bytes={config.max_request_bytes}",
            *(f"--media-hosts={entry}" for entry in config.media_hosts),
            f"--log-level={config.log_level}",
            f"--log-format={config.log_format}",
        ]
        most = num_processes or config.tokenizer_threads
        half = max(most // 2, 1)
        self._jobs = TenantJobs(TenantTurns(most, lambda tenant: half))
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def close(self) -> None:
        """Kills all processes and waits for their ends; their requests fail."""
        for job in self._jobs.running:
            job.cancel()
        every = (*self._idle, *self._busy)
        for running in every:
            running.close()
        await asyncio.gather(*(running.ended() for running in every))

    async def ask(
        self,
        request: reader_pb2.ReadRequest,
        path: str,
        tenant: str | None = None,
        weight: int = 1,
        patience: float | None = None,
    ) -> tuple[reader_pb2.ReadResponse, Packed]:
        """Returns one response, and what follows it. When the client leaves, the process still finishes the
        job; a client that leaves before its turn starts none. path: of the field that is read. tenant: whose
        turn it takes. weight: bytes of text that take as long. patience: seconds from its turn on; None:
        WALL_LIMIT. Raises ServiceError, naming the path of a deadly job."""
        limit = WALL_LIMIT if patience is None else patience
        answer, media = await self._jobs.run(
            lambda: asyncio.create_task(self._run(request, path, limit), name="reader"), tenant, weight
        )
        if answer.HasField("error"):
            raise _service_error(answer.error)
        return answer, media

    async def _run(
        self, request: reader_pb2.ReadRequest, path: str, patience: float
    ) -> tuple[reader_pb2.ReadResponse, Packed]:
        """Runs in a turn."""
        running = self._next_idle()
        if running is None:
            running = await _Process.start(self._arguments, self._fork)
            patience += 0 if running.is_forked else WALL_LIMIT  # it loads the model's files first
        self._busy.add(running)
        try:
            answer = await asyncio.wait_for(running.ask(request.SerializeToString()), patience)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, DecodeError):
            raise await running.exit_error(path, fetches=request.HasField("media")) from None
        except BaseException:  # the process is in the middle of a job
            running.close()
            raise
        finally:
            self._busy.discard(running)
        self._idle.append(running)
        return answer

    def _next_idle(self) -> "_Process | None":
        """Returns a live idle process; one that died idle died of no request."""
        while self._idle:
            running = self._idle.pop()
            if running.lives:
                return running
            running.close()
        return None


class _ForkedChild:
    """A forked process, with what asyncio has for those that it starts."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        """None: it runs."""
        return self._process.poll()

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Returns the exit code. A thread waits, and leaves it to be read here."""
        while (code := self.returncode) is None:
            with contextlib.suppress(ChildProcessError):  # it was read meanwhile
                await asyncio.to_thread(os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return code


class _Process:
    """One prompt process, and the socket that is its standard input."""

    def __init__(
        self,
        child: asyncio.subprocess.Process | _ForkedChild,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child, self._reader, self._writer = child, reader, writer

    @classmethod
    async def start(cls, arguments: Sequence[str], fork: Fork | None) -> "_Process":
        """Has a process forked, or starts one, which loads the model's files while its first request
        waits."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = await cls._start(arguments, theirs, fork)
            return cls(child, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()  # which ends the process
            raise

    @staticmethod
    async def _start(
        arguments: Sequence[str], stdin: socket.socket, fork: Fork | None
    ) -> asyncio.subprocess.Process | _ForkedChild:
        if fork is not None:
            with contextlib.suppress(OSError):
                forked, status = await asyncio.to_thread(fork, arguments, stdin.fileno())
                os.close(status)  # it has nothing to report
                return _ForkedChild(forked)
        return await asyncio.create_subprocess_exec(
            *process.command(arguments),
            stdin=stdin.fileno(),
            stdout=asyncio.subprocess.DEVNULL,
            env=process.child_environment(),
        )

    @property
    def is_forked(self) -> bool:
        """True if it had the model's files from its start."""
        return isinstance(self._child, _ForkedChild)

    async def ask(self, request: bytes) -> tuple[reader_pb2.ReadResponse, Packed]:
        """Sends a request and returns its response, and what follows that. Raises IncompleteReadError or
        ConnectionError when the process dies."""
        self._writer.write(LENGTH.pack(len(request)) + request)
        await self._writer.drain()
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        if size > LONGEST:
            raise DecodeError
        response = reader_pb2.ReadResponse.FromString(await self._reader.readexactly(size))
        return response, await self._receive(response.prompt.media_bytes)

    async def _receive(self, size: int) -> Packed:
        """Returns so many bytes, which are copied in small pieces. Raises IncompleteReadError and
        ConnectionError."""
        if size > LONGEST:
            raise DecodeError
        received, count = bytearray(size), 0
        while count < size:
            piece = await self._reader.read(min(size - count, _PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", size)
            received[count : count + len(piece)] = piece
            count += len(piece)
        return received

    @property
    def lives(self) -> bool:
        """True unless its end has been noticed."""
        return self._child.returncode is None

    def close(self) -> None:
        """Kills the process, if it still runs, and closes the socket. Idempotent."""
        if self.lives:
            self._child.kill()
        self._writer.close()

    async def ended(self) -> int:
        """Returns the exit code, once there is one."""
        return await self._child.wait()

    async def exit_error(self, path: str, *, fetches: bool) -> ServiceError:
        """Returns the error for the request that the process died of. fetches: it had media to fetch."""
        hangs = not self._reader.at_eof()  # a process that has closed its socket is about to end
        if hangs:
            self.close()
        code = await self.ended()
        self.close()
        if code >= 0:  # it could not start, or has a bug, and has logged why itself
            log.error("a prompt process failed: %s", describe_exit(code))
            return InternalError()
        task = "compile" if path in ("structured_output", "prompt.chat.tools") else "tokenize"
        task = "decode" if path.endswith(MEDIA_FIELDS) else task
        task = "fetch" if fetches else task
        log.warning("a prompt process died of one request, of %s: %s", path, describe_exit(code))
        if fetches and hangs:
            return MediaUnavailable({path: TOO_LONG})
        what = "time" if code == -signal.SIGVTALRM else "memory or time"
        return InvalidRequest({path: f"takes too much {what} to {task}"})


def _service_error(error: reader_pb2.ReadError) -> ServiceError:
    """Returns the error that the process raised."""
    made = ServiceError(error.message, violations=dict(error.violations), metadata=dict(error.metadata))
    made.code, made.reason = error.code, error.reason
    return made
