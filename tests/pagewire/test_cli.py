"""The command `pagewire` as users type it, without a service."""

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from pagewire import __version__, cli
from tests.pagewire import fakes
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


def pagewire(
    *arguments: str | bytes, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEWIRE_")}
    return subprocess.run(
        [sys.executable, "-m", "pagewire", *arguments],
        cwd=ROOT,
        env=inherited | environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_help_lists_every_command():
    run = pagewire()
    assert run.returncode == 0
    for command in cli.COMMANDS:
        assert f"  {command} " in run.stdout
    assert len(run.stdout.splitlines()) <= 25


def test_version():
    assert pagewire("--version").stdout.strip() == pagewire("version").stdout.strip() == __version__


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "version"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.run([command, "--help"])
    assert not ended.value.code and capsys.readouterr().out.startswith(f"usage: pagewire {command}")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serv"], 2, ["'serv'", "did you mean serve?"]),
        (["serve", "--prot=1"], 2, ["--prot", "did you mean --port?", "pagewire serve --help"]),
        (["serve", "/no/such/folder"], 1, ["cannot load the model", "/no/such/folder is not a folder"]),
        (["generate", "hi", "--address=127.0.0.1:1"], 1, ["UNAVAILABLE", "pagewire serve"]),
        (["generate", b"\xff", "--address=127.0.0.1:1"], 2, ["PROMPT", "it is not UTF-8"]),
        (["health", "--http=a:b"], 2, ["--http a:b is no address"]),
        (["health", "--http=127.0.0.1:1", "--tls-ca=/nope"], 2, ["--tls-ca /nope", "No such file"]),
        (["bench", "--rate=1", "--concurrency=4"], 2, ["--rate and --concurrency exclude each other"]),
        (["health", "--address=127.0.0.1:1"], 1, ["NOT_SERVING", "127.0.0.1:1"]),
    ],
)
def test_what_is_wrong_is_said_in_a_few_lines(arguments: list[str | bytes], code: int, words: list[str]):
    run = pagewire(*arguments)
    assert run.returncode == code
    assert "Traceback" not in run.stderr and len(run.stderr.splitlines()) <= 3
    for word in words:
        assert word in run.stderr


def test_the_environment_is_read():
    run = pagewire("serve", PAGEWIRE_PORT="many")
    assert run.returncode == 2 and "PAGEWIRE_PORT" in run.stderr


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("engine", "torch", "serve"),
        ("serve", "torch", "serve"),
        ("demo", "torch", "serve"),
        ("serve", "starlette", "serve"),
        ("frontend", "zmq", "frontend"),
        ("token new --tenant a", "yaml", "frontend"),
        ("serve --device=simulated", "numpy", "engine"),
        ("engine --device=simulated", "numpy", "engine"),
        ("worker", "numpy", "serve"),
    ],
)
def test_commands_that_serve_name_the_extra(command: str, missing: str, extra: str):
    """A base install is a client."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == '{missing}' else find(name, *rest)\n"
        "from pagewire.__main__ import main\n"
        "sys.argv = ['pagewire', *sys.argv[1:]]\n"
        "sys.exit(main())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *command.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 1, run.stderr
    assert f"{missing} is not installed" in run.stderr and f"pip install '.[{extra}]'" in run.stderr


@pytest.fixture
def service():
    fake = fakes.FakeService()
    fake.respond = fakes.words
    with fakes.running(fake) as fake.address:
        yield fake


def test_generate_streams_to_standard_output(service):
    run = pagewire(
        "generate", "hi", "--address", service.address, "--usage", "--seed=3", "--stop=x", "--stop=y"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "HelByelo\n"  # the fake always sends two sequences
    assert "3 + 4 tokens" in run.stderr and "seed 7" in run.stderr
    request = service.requests[0]
    assert request.sampling.seed == 3 and list(request.stopping.stop) == ["x", "y"]
    assert not request.sampling.HasField("temperature")


def test_verbose_asks_for_timings(service):
    run = pagewire("generate", "hi", "--verbose", "--address", service.address)
    assert run.stdout == "HelByelo\n" and run.stderr.startswith("[request "), run.stderr
    assert service.requests[0].output.timings


def test_generate_several(service):
    run = pagewire("generate", "hi", "--n=2", PAGEWIRE_ADDRESS=service.address)
    assert run.stdout == "[0] Hello\n[1] Bye\n"


def test_generate_reads_standard_input(service):
    assert pagewire("generate", "--address", service.address, stdin="from a pipe").returncode == 0
    assert service.requests[0].prompt.text == "from a pipe"


def test_generate_sends_images(service, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_text(name)
    images = [f"--image={tmp_path / name}" for name in ("a.png", "b.png")]
    run = pagewire("generate", "<image><image>hi", *images, "--address", service.address)
    assert run.returncode == 0, run.stderr
    prompt = service.requests[0].prompt
    assert prompt.text == "<image><image>hi" and [each.data for each in prompt.media] == [b"a.png", b"b.png"]
    run = pagewire("generate", "<image>", "--image=nothing.png", "--address", service.address)
    assert run.returncode == 2 and "--image nothing.png: No such file" in run.stderr


def test_generate_sends_sounds(service, tmp_path):
    (tmp_path / "a.wav").write_text("a")
    sound = f"--audio={tmp_path / 'a.wav'}"
    assert pagewire("generate", "<|AUDIO|>", sound, "--address", service.address).returncode == 0
    assert [each.data for each in service.requests[0].prompt.media] == [b"a"]
    for others, problem in (
        (["--audio=nothing.wav"], "--audio nothing.wav: No such file"),
        ([f"--image={tmp_path / 'a.wav'}"], "--image and --audio are of models that take one or the other"),
    ):
        run = pagewire("generate", "<|AUDIO|>", sound, *others, "--address", service.address)
        assert run.returncode == 2 and problem in run.stderr


def test_chat_keeps_the_conversation(service):
    run = pagewire("chat", "--system=be brief", "--address", service.address, stdin="one\ntwo\n")
    assert run.returncode == 0, run.stderr
    roles = [message.role for message in service.requests[1].prompt.chat.messages]
    texts = [message.content[0].text for message in service.requests[1].prompt.chat.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert texts == ["be brief", "one", "Hello", "two"]


def test_chat_survives_an_error(service):
    """The question is dropped, the conversation goes on; a script learns of it by the exit code."""
    words = service.respond

    def fails_second(request, context):
        if len(service.requests) == 2:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt: 1053 tokens leave no room for output")
        return words(request, context)

    service.respond = fails_second
    run = pagewire("chat", "--address", service.address, stdin="one\ntwo\nthree\n")
    assert run.returncode == 1 and "leave no room" in run.stderr and "do:    " in run.stderr
    texts = [message.content[0].text for message in service.requests[2].prompt.chat.messages]
    assert texts == ["one", "Hello", "three"]


@pytest.mark.parametrize("command", ["version", "help", "--version"])
def test_commands_without_arguments_refuse_them(command):
    run = pagewire(command, "extra")
    assert run.returncode == 2 and "takes no arguments" in run.stderr


def test_an_empty_address_is_a_usage_error():
    run = pagewire("generate", "hi", "--address=")
    assert run.returncode == 2 and "the address to connect to is empty" in run.stderr


def test_health_of_a_running_service(service):
    service.set_serving(True)
    run = pagewire("health", "--address", service.address)
    assert (run.returncode, run.stdout) == (0, f"SERVING: {service.address}\n")
    service.set_serving(False)
    run = pagewire("health", "--address", service.address)
    assert run.returncode == 1 and "not ready: it starts, drains, or has no engine" in run.stderr


@pytest.mark.parametrize("status", [200, 503])
def test_health_of_a_process_by_its_http_port(status):
    """As the container of an engine core asks, which has no gRPC."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keeps standard error clean."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        run = pagewire("health", f"--http=127.0.0.1:{server.server_port}")
        thread.join()
    assert run.returncode == (status != 200)
    assert run.stdout.startswith("SERVING") if status == 200 else "503" in run.stderr


def test_standard_input_that_is_not_utf_8_is_a_usage_error():
    command = [sys.executable, "-m", "pagewire", "generate", "--address=127.0.0.1:1"]
    run = subprocess.run(command, cwd=ROOT, input=b"a\xff", capture_output=True, timeout=PATIENCE_S)
    assert run.returncode == 2 and run.stderr == b"error: standard input is not UTF-8\n"


def test_a_reader_that_has_gone_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "pagewire", "--help"]
    run = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    os.close(write)
    assert run.returncode == 141 and not run.stderr


def test_a_full_disk_is_no_traceback():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "pagewire", "version"]
        run = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    assert run.returncode == 1 and run.stderr == b"error: cannot write: No space left on device\n"


def test_a_full_disk_elsewhere_is_named():
    program = [
        "from pagewire import __main__, cli",
        "def fail(arguments):",
        "    raise OSError(28, 'No space left on device', '/run/x')",
        "cli.run = fail",
        "raise SystemExit(__main__.main())",
    ]
    command = [sys.executable, "-c", "\n".join(program)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stderr) == (1, "error: cannot write to /run/x: No space left on device\n")


def test_health_of_a_process_that_is_not_there():
    run = pagewire("health", "--http=127.0.0.1:1")
    assert run.returncode == 1 and run.stderr.startswith("NOT_SERVING: 127.0.0.1:1:")
