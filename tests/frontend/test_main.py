"""The process: what it tells its parent, and how it ends."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend import main
from pagewire.config import FrontendConfig
from pagewire.host.spawn import Status
from pagewire.host.standby import fork
from pagewire.ipc.transport import default_folder, frontends_address
from pagewire.v1 import generation_pb2_grpc
from tests.free_ports import free_ports
from tests.frontend.fakes import FakeEngine, Output, encode, engine_address, make_request
from tests.patience import soon

PROGRAM = """
import sys
from frontend.main import run
from pagewire import logs
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
logs.setup("frontend", "warning")
try:
    model, engine, port, standby = sys.argv[1:]
    shared = {"port": int(port), "standby": standby == "True", "shutdown_grace": 30}
    sys.exit(run(FrontendConfig(model=model, engine=(engine,), **shared)))
except StartupError as error:
    print(error)
    sys.exit(3)
"""


class Process:
    """A frontend process and the events of its status pipe."""

    def __init__(
        self, process: asyncio.subprocess.Process, events: asyncio.StreamReader, orders: socket.socket
    ) -> None:
        """orders: the other end of its standard input."""
        self.process, self.orders = process, orders
        self._events = events

    async def event(self, name: str) -> dict:
        """The next event of that name; those before it are skipped."""
        while True:
            line = await soon(self._events.readline())
            assert line, "the process has ended"
            event = json.loads(line)
            if event["event"] == name:
                return event

    async def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        out, err = await soon(self.process.communicate())
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def frontend(checkpoint, address: str, port: int = 0, *, standby: bool = False):
    reading, writing = os.pipe()
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(checkpoint), address, str(port), str(standby)),
        env={**os.environ, "PAGEWIRE_STATUS_FD": str(writing)},
        pass_fds=(writing,),
        stdin=theirs,
        stdout=pipe,
        stderr=pipe,
    )
    os.close(writing)
    theirs.close()
    events = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(events), os.fdopen(reading)
    )
    try:
        yield Process(process, events, orders)
    finally:
        transport.close()
        orders.close()
        if process.returncode is None:
            process.kill()
            await process.communicate()


@contextlib.asynccontextmanager
async def drains_after(channel: grpc.aio.Channel):
    """Until the server says, after the block, that it takes nothing new."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    yield
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_from_start_to_signal(checkpoint, number):
    """Waits for the engine, says where it listens, finishes its streams, exits 0 without a word."""
    with engine_address() as address:
        async with frontend(checkpoint, address) as process:
            assert (await process.event("loading"))["what"] == "tokenizer"
            assert (await process.event("loading"))["what"] == "waiting for the engine"
            engine = FakeEngine(address)
            await engine.start()
            ready = await process.event("ready")
            assert ready["address"] == f"127.0.0.1:{ready['port']}"
            async with grpc.aio.insecure_channel(ready["address"]) as channel:
                stub = generation_pb2_grpc.GenerationServiceStub(channel)
                messages = aiter(stub.Generate(make_request()))
                handle = (await soon(engine.requests.get())).handle
                await engine.output(handle, Output(encode("a")))
                assert (await anext(messages)).sequences[0].text == "a"
                async with drains_after(channel):
                    process.process.send_signal(number)
                await engine.output(handle, Output(encode("b"), 3))
                assert (await anext(messages)).sequences[0].text == "b"
            assert await process.end() == (0, "", "")
            await engine.close()


async def test_a_standby_forks_frontends(checkpoint):
    """Until then another process has the port, and the engine does not know any; it lives on."""
    (port,) = free_ports(1)
    with engine_address() as address, socket.create_server(("127.0.0.1", port)) as taken:
        engine = FakeEngine(address)
        await engine.start()
        async with frontend(checkpoint, address, port, standby=True) as process:
            await process.event("standby")
            await process.event("beat")
            assert engine.hellos.empty()
            taken.close()
            with open(os.devnull) as null:
                forked, status = fork(process.process.pid, process.orders, ["frontend"], null.fileno())
            with open(status) as events:
                ready = await asyncio.to_thread(lambda: [*map(json.loads, iter_until(events, "ready"))][-1])
                async with grpc.aio.insecure_channel(ready["address"]) as channel:
                    stub = generation_pb2_grpc.GenerationServiceStub(channel)
                    messages = aiter(stub.Generate(make_request()))
                    handle = (await soon(engine.requests.get())).handle
                    await engine.output(handle, Output(encode("a"), 3))
                    assert (await anext(messages)).sequences[0].text == "a"
                forked.terminate()
                await asyncio.to_thread(forked.wait)
                assert forked.returncode == 0
            process.orders.close()
            assert (await process.end())[0] == 0
            await engine.close()


def iter_until(lines: Iterable[str], event: str) -> Iterator[str]:
    """Yields lines up to the one with this event."""
    for line in lines:
        yield line
        if json.loads(line)["event"] == event:
            return


async def test_a_second_signal_does_not_wait_for_streams(checkpoint):
    with engine_address() as address:
        engine = FakeEngine(address)
        await engine.start()
        async with frontend(checkpoint, address) as process:
            ready = await process.event("ready")
            async with grpc.aio.insecure_channel(ready["address"]) as channel:
                stub = generation_pb2_grpc.GenerationServiceStub(channel)
                call = stub.Generate(make_request())
                await soon(engine.requests.get())
                async with drains_after(channel):
                    process.process.send_signal(signal.SIGINT)
                process.process.send_signal(signal.SIGINT)
                assert await call.code() == grpc.StatusCode.UNAVAILABLE
            assert await process.end() == (0, "", "")
        await engine.close()


async def test_a_signal_while_it_waits_for_the_engine(checkpoint):
    with engine_address() as address:
        async with frontend(checkpoint, address) as process:
            while (await process.event("loading"))["what"] != "waiting for the engine":
                pass
            process.process.send_signal(signal.SIGTERM)
            assert await process.end() == (0, "", "")


async def test_without_an_engine_it_says_where_it_looks_for_one(checkpoint):
    command = ("-m", "pagewire", "frontend", f"--model={checkpoint}", "--port=0", "--http-port=-1")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=pipe)
    try:
        line = b""
        while b"UNAVAILABLE" not in line:
            line = await soon(process.stderr.readline())
            assert line, "it has ended"
    finally:
        process.kill()
        await process.communicate()
    assert line.decode().endswith(f"--engine is {frontends_address(default_folder())}\n")


async def test_a_port_that_is_taken(checkpoint):
    with engine_address() as address:
        engine = FakeEngine(address)
        await engine.start()
        async with frontend(checkpoint, address) as first:
            port = (await first.event("ready"))["port"]
            async with frontend(checkpoint, address, port) as second:
                failed = await second.event("failed")
                assert str(port) in failed["what"] and "--port" in failed["todo"]
                code, out, err = await second.end()
                assert code == 3 and str(port) in out and "Traceback" not in err
        await engine.close()


async def test_a_model_that_is_not_there(tmp_path):
    async with frontend(tmp_path / "nothing", "ipc:///tmp/none/x.ipc") as process:
        assert "nothing" in (await process.event("failed"))["what"]
        assert (await process.end())[0] == 3


async def test_one_that_cannot_take_calls_ends(monkeypatch):
    """It would live on, and never be replaced."""

    class Broken:
        def __init__(self, *_: object) -> None: ...

        def open(self) -> int:
            return 1

        async def start(self, patience: float) -> None:
            raise RuntimeError("no server")

    monkeypatch.setattr(main, "Frontend", Broken)
    loop = asyncio.get_running_loop()
    try:
        with pytest.raises(RuntimeError, match="no server"):
            await soon(main._serve(FrontendConfig(), None, Status()))
    finally:
        loop.set_exception_handler(None)
        for number in main.SIGNALS:
            loop.remove_signal_handler(number)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
