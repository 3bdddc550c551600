"""Processes that tokenize prompts which could occupy a thread for too long.

Tokenizers and chat templates come with checkpoints, and prompts from clients; together they may take any time
and memory, in calls into C that cannot be interrupted. A prompt process has limits for both
(frontend.prompts.process). When it exceeds them it dies, its request is refused, and the next request gets a
new process.
"""

import asyncio
import logging
import signal
import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from frontend.call.turns import TenantJobs, TenantTurns
from frontend.errors import InternalError, InvalidRequest, ServiceError
from pagewire.config import FrontendConfig
from pagewire.host import spawn as process
from pagewire.host.proc_stat import describe_exit
from pagewire.internal.v1 import reader_pb2

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
"""Prefix of each message: its length."""
LONGEST = 1 << 28
"""Bytes of a response: a prompt's text, and twelve bytes per token."""
WALL_LIMIT = 120.0
"""Seconds from request to response; only a suspended process exceeds them, since computing ones meet their
CPU limit first."""


class PromptProcesses:
    """A pool of processes, started on demand."""

    def __init__(self, config: FrontendConfig) -> None:
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
            f"--log-level={config.log_level}",
        ]
        half = max(config.tokenizer_threads // 2, 1)
        self._jobs = TenantJobs(TenantTurns(config.tokenizer_threads, lambda tenant: half))
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def close(self) -> None:
        """Kills all processes and waits for their ends; their requests fail."""
        for job in self._jobs.running:
            job.cancel()
        await asyncio.gather(*(running.close() for running in (*self._idle, *self._busy)))

    async def ask(
        self, request: reader_pb2.ReadRequest, path: str, tenant: str | None = None, weight: int = 1
    ) -> reader_pb2.ReadResponse:
        """Returns one response. When the client leaves, the process still finishes the job; a client that
        leaves before its turn starts none. path: of the field that is read. tenant: whose turn it takes.
        weight: bytes of text that take as long. Raises ServiceError, naming the path of a deadly job."""
        answer = await self._jobs.run(
            lambda: asyncio.create_task(self._run(request, path), name="reader"), tenant, weight
        )
        if answer.HasField("error"):
            raise _service_error(answer.error)
        return answer

    async def _run(self, request: reader_pb2.ReadRequest, path: str) -> reader_pb2.ReadResponse:
        """Runs in a turn."""
        running = self._next_idle() or await _Process.start(self._arguments)
        self._busy.add(running)
        try:
            answer = await asyncio.wait_for(running.ask(request.SerializeToString()), WALL_LIMIT)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, DecodeError):
            raise await running.exit_error(path) from None
        except BaseException:  # the process is in the middle of a job
            running.kill()
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
        return None


class _Process:
    """One prompt process."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    @classmethod
    async def start(cls, arguments: Sequence[str]) -> "_Process":
        """Starts a process; it loads the model's files while its first request waits."""
        child = await asyncio.create_subprocess_exec(
            *process.command(arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=process.child_environment(),
        )
        return cls(child)

    async def ask(self, request: bytes) -> reader_pb2.ReadResponse:
        """Sends a request and returns its response. Raises IncompleteReadError or ConnectionError when the
        process dies."""
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
        """True unless its end has been noticed."""
        return self._child.returncode is None

    def kill(self) -> None:
        """Kills the process. Idempotent."""
        if self.lives:
            self._child.kill()

    async def close(self) -> None:
        """Kills the process and waits until its pipes are closed."""
        self.kill()
        await self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()

    async def exit_error(self, path: str) -> ServiceError:
        """Returns the error for the request that the process died of."""
        reader = self._child.stdout
        assert reader is not None
        if not reader.at_eof():  # a process that has closed its pipe is about to end; this one hangs
            self.kill()
        code = await self._child.wait()
        if code >= 0:  # it could not start, or has a bug, and has logged why itself
            log.error("a prompt process failed: %s", describe_exit(code))
            return InternalError()
        task = "compile" if path in ("structured_output", "prompt.chat.tools") else "tokenize"
        log.warning("a prompt process died of one request, of %s: %s", path, describe_exit(code))
        what = "time" if code == -signal.SIGVTALRM else "memory or time"
        return InvalidRequest({path: f"takes too much {what} to {task}"})


def _service_error(error: reader_pb2.ReadError) -> ServiceError:
    """Returns the error that the process raised."""
    made = ServiceError(error.message, violations=dict(error.violations), metadata=dict(error.metadata))
    made.code, made.reason = error.code, error.reason
    return made
