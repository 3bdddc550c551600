"""A server with the OpenAI API as its users have it: over HTTP, completions streamed as server-sent events.

The server is a child of this process, which is the client: the same one for all servers, ours too.
"""

import asyncio
import atexit
import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import cycle

from benchmarks.versus.peers.harness import Peer, Request, Settings, Trace, serve
from pagewire.errors import PagewireError
from pagewire_bench.prompts import BenchRequest
from pagewire_bench.targets.openai_target import OpenAiTarget
from pagewire_bench.targets.target import OutputOptions, RequestFailed
from pagewire_bench.trace import spread_tokens

PAUSE_S = 0.1
"""Between two questions whether it answers."""
STOP_S = 10.0


class Server(Peer):
    """Answers when made. This process ends with the server's exit code when the server ends."""

    def __init__(self, settings: Settings) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [word.replace("{port}", str(port)) for word in settings.serve]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        atexit.register(self._process.wait, STOP_S)  # behind the next one
        atexit.register(self._process.terminate)
        options = OutputOptions(temperature=0, ignore_eos=True)
        self._targets = [
            OpenAiTarget(f"http://127.0.0.1:{port}/v1", "completions", options, model=name)
            for name in settings.adapters or [""]
        ]
        self._runner = asyncio.Runner()
        self._runner.run(self._open())
        self.versions = dict(settings.versions)

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """Streams of text, whose tokens the server counts."""
        try:
            return self._runner.run(self._send_all(requests))
        except RequestFailed:
            self._end_with_server()
            raise

    async def _open(self) -> None:
        """Asks until the server answers, then by each adapter."""
        first, *others = self._targets
        while True:
            try:
                await first.open()
            except PagewireError:
                self._end_with_server()
                await asyncio.sleep(PAUSE_S)
            else:
                break
        for target in others:
            await target.open()

    async def _send_all(self, requests: Sequence[Request]) -> list[Trace]:
        return list(await asyncio.gather(*map(self._send, cycle(self._targets), requests)))

    async def _send(self, target: OpenAiTarget, request: Request) -> Trace:
        trace = Trace()
        counts = await target.send(BenchRequest(request.prompt, request.output), trace.take)
        if counts.completion_tokens is not None:
            trace.arrivals = spread_tokens(trace.arrivals, counts.completion_tokens)
        return trace

    def _end_with_server(self) -> None:
        """What the log says last is the server's."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            sys.exit(self._process.wait(PAUSE_S))


if __name__ == "__main__":
    serve(Server)
