"""Node: a client that knows only the .proto files, with @grpc/grpc-js, and OpenAI's own package."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
import trustme

from frontend.auth.tokens import digest_of, entry_line, new_token
from pagewire import Client
from pagewire.local_service import Service
from tests.e2e import services
from tests.e2e.node import needs_node, node, node_environment

LONG = 300

pytestmark = needs_node


def test_a_node_client(node_folder: Path, demo: Service, client: Client):
    prompt = "The capital of France is"
    expected = client.generate(prompt, temperature=0, max_tokens=40)
    usage = f"[{expected.usage.prompt_tokens} + {expected.usage.completion_tokens} tokens]"
    assert node(node_folder, demo.address, "stream", prompt) == f"{expected.text}\n{usage}\n"
    assert node(node_folder, demo.address, "unary", prompt).startswith(f"{expected.text}\n[FINISH_REASON_")
    assert "Tokyo" in node(node_folder, demo.address, "chat", "What is the capital of Japan?")
    assert node(node_folder, demo.address, "cancel", "1, 2, 3,") == "[CANCELLED]\n"
    services.wait_until(lambda: services.is_idle(client))


def test_a_node_client_with_a_token(node_folder: Path, tmp_path: Path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    token = new_token()
    (tmp_path / "tokens.yaml").write_text("tokens:\n" + entry_line(digest_of(token), "alice", {}))
    pem = str(tmp_path / "server.pem")
    flags = {"auth_file": str(tmp_path / "tokens.yaml"), "tls_cert": pem, "tls_key": pem}
    with services.start(device="simulated", profile="instant", openai_port=0, **flags) as service:
        variables = {"CA": str(tmp_path / "ca.pem"), "TOKEN": token}
        assert "tokens]" in node(node_folder, service.address, "stream", "hi", **variables)
        with pytest.raises(AssertionError, match="token is not known"):
            node(node_folder, service.address, "unary", "hi", **variables | {"TOKEN": "pw_wrong"})
        trust = {"NODE_EXTRA_CA_CERTS": str(tmp_path / "ca.pem"), "TOKEN": token}
        said = node(node_folder, service.facts["openai"], "hi", script="openai.mjs", **trust)
        assert said.splitlines() == ["chat: true", "responses: true", "form: true", "error: 400 temperature"]


def test_a_node_client_continues(node_folder: Path, float32: Service):
    """All frontends are killed when the first text is there."""
    with Client(float32.address) as client:
        expected = client.generate("1, 2, 3,", temperature=0, max_tokens=LONG)
        process = subprocess.Popen(
            ["node", "client.js", float32.address, "steady", "1, 2, 3,"],
            cwd=node_folder,
            env={**node_environment(), "MAX_TOKENS": str(LONG)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # a buffer would take more than the first byte, and communicate() would not see it
        )
        assert process.stdout is not None
        first = process.stdout.read(1)
        killed = services.processes(float32.pid)["frontend"]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        rest, error = process.communicate(timeout=services.PATIENCE_S)
        assert process.returncode == 0, error
        assert (first + rest).decode() == expected.text + "\n"
        services.wait_until(lambda: services.are_back(float32, "frontend", killed))
        client.wait_ready()


def test_a_node_client_continues_at_another_frontend(node_folder: Path, tmp_path: Path):
    """Of two that it was told of, the first is killed, and does not come back."""
    engines = tmp_path / "engines"
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(services.start(device="simulated", profile="cpu", data_parallel_size=2))
        engines.write_text("\n".join(services.engine_addresses(service)))
        frontends = [services.Frontend(f"@{engines}") for _ in range(2)]
        for frontend in frontends:
            stack.callback(frontend.close)
        client = stack.enter_context(Client(service.address))
        expected = client.generate("1, 2, 3,", temperature=0, max_tokens=LONG)
        addresses = "ipv4:" + ",".join(frontend.address for frontend in frontends)
        process = subprocess.Popen(
            ["node", "client.js", addresses, "steady", "1, 2, 3,"],
            cwd=node_folder,
            env={**node_environment(), "MAX_TOKENS": str(LONG)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdout is not None
        first = process.stdout.read(1)
        frontends[0].kill()
        rest, error = process.communicate(timeout=services.PATIENCE_S)
        assert process.returncode == 0, error
        assert (first + rest).decode() == expected.text + "\n"
