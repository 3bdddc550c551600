"""Runs the quickstarts of README.md as pasted: `quickstarts.py WHEEL CONSTRAINTS`, in an empty folder, with
`python`, `pip` and `pagewire` of the PATH.

What differs from the page: `.` of `pip install` is WHEEL (with the same extra), ports are free ones, and the
model is the built-in one, which answers the same questions without a network. scripts/wheel_test.sh calls it;
tests/e2e/test_readme.py checks the commands that need containers or a cluster.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "README.md"
PATIENCE_S = 300
ANSWER = "Tokyo"
"""Each quickstart asks for the capital of Japan."""


def blocks(language: str, page: Path = PAGE) -> list[str]:
    """Returns the fenced blocks of a page that are marked with a language; "" for those without."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for marked, text in fences if marked == language]


def lines(program: str, page: Path = PAGE) -> list[str]:
    """Returns the lines of a page that call a program; continued lines are one."""
    text = "\n".join(blocks("", page)).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith(f"{program} ")]


def here(text: str, grpc: str, http: str) -> str:
    """Returns the text with the addresses of the page replaced by those of a service, HOST:PORT."""
    return text.replace("127.0.0.1:50051", grpc).replace("127.0.0.1:8000", http)


def replaced(text: str, old: str, new: str) -> str:
    """Returns the text with `old` replaced. Exits where the page does not have it."""
    if old not in text:
        sys.exit(f"quickstarts: {old!r} is not in {text!r}")
    return text.replace(old, new)


def answered(what: str, *command: str) -> None:
    """Runs a quickstart. Exits where it fails, or does not print the answer."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode or ANSWER not in done.stdout:
        sys.exit(f"quickstarts: {what} exited with {done.returncode}: {done.stdout}{done.stderr}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main() -> None:
    wheel, constraints = sys.argv[1:]
    (install,), (serve,) = lines("pip"), lines("pagewire")
    install = replaced(install, "-c constraints.txt", f"-c {shlex.quote(constraints)}")
    subprocess.run(["bash", "-ec", f"{replaced(install, '.[', f'{wheel}[')} --quiet"], check=True)
    subprocess.run(["pip", "install", "--quiet", "-c", constraints, "openai"], check=True)

    port, http = free_port(), free_port()
    grpc, serve = f"127.0.0.1:{port}", replaced(serve, "--openai-port 8000", f"--openai-port {http}")
    serve = re.sub(r"serve \S+/\S+", "serve", serve)
    environment = os.environ | {"PAGEWIRE_PORT": str(port), "PAGEWIRE_HTTP_PORT": "-1"}
    with subprocess.Popen(shlex.split(serve), env=environment, stdout=subprocess.DEVNULL) as service:
        try:
            health = ["pagewire", "health", "--wait", "5", "--address", grpc]
            while subprocess.run(health, capture_output=True).returncode:
                if service.poll() is not None:
                    sys.exit(f"quickstarts: {serve!r} exited with {service.returncode}")
            for block in blocks("python"):
                block = here(block, grpc, f"127.0.0.1:{http}")
                answered(block, "python", "-W", "error", "-c", block)
            (curl,) = lines("curl")
            answered(curl, "bash", "-ec", here(curl, grpc, f"127.0.0.1:{http}"))
        finally:
            service.terminate()
    if service.returncode:
        sys.exit(f"quickstarts: {serve!r} exited with {service.returncode} on SIGTERM")


if __name__ == "__main__":
    main()
