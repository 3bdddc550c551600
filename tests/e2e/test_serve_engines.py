"""`pagewire serve --frontends 0`: engine cores with standbys, for frontends elsewhere."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from pagewire import Client
from tests.e2e import services


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=services.PATIENCE_S) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == 503
        return False


def test_a_stream_goes_on_after_the_core_of_other_frontends_was_killed(
    serve: Callable[..., services.Serve], tmp_path: Path, patient: None
):
    tmp_path.chmod(0o700)
    address = f"ipc://{tmp_path}/frontends.ipc"
    service = serve("--frontends=0", f"--listen={address}", "--device=cpu", "--standbys=0", "--http-port=0")
    facts = service.wait_ready()
    assert facts["address"] == address
    frontend = services.Frontend(address)
    try:
        with Client(frontend.address) as client:
            sampling = {"max_tokens": 300, "seed": 3, "temperature": 1.0, "ignore_eos": True}
            expected = client.generate("1, 2, 3,", **sampling).text
            stream = client.stream("1, 2, 3,", **sampling)
            text = next(stream).text
            (core,) = services.processes(service.process.pid)["engine"]
            os.kill(core, signal.SIGKILL)
            text += "".join(delta.text for delta in stream)
            assert text == expected
        services.wait_until(lambda: is_ready(f"http://{facts['http'].removeprefix('http://')}/readyz"))
    finally:
        frontend.close()
