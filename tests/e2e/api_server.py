"""An API server of Kubernetes, on the loopback address, as envtest starts it: with etcd, and no node."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.e2e.services import wait_until
from tests.free_ports import free_ports

TOKEN = "of-an-admin"


def find(name: str) -> str | None:
    """Returns the path of a program, in the folder that envtest's variable names or in one of PATH."""
    return shutil.which(name, path=f"{os.environ.get('KUBEBUILDER_ASSETS', '')}:{os.environ.get('PATH', '')}")


class Cluster:
    """What kubectl reaches."""

    def __init__(self, folder: Path, address: str) -> None:
        """folder: gets the configuration of kubectl."""
        self._folder = folder
        self._kubeconfig = write_kubeconfig(folder, address)

    def run(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs kubectl to its end, whatever that is. text: for its standard input."""
        command = [str(find("kubectl")), f"--kubeconfig={self._kubeconfig}", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def __call__(self, *words: str, text: str = "") -> str:
        """Returns what kubectl prints. Fails if it fails or warns."""
        done = self.run(*words, text=text)
        assert done.returncode == 0 and not done.stderr, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> Any:
        """Returns an object, or a list of objects."""
        return json.loads(self("get", "--output=json", *words))

    @contextlib.contextmanager
    def controllers(self) -> Iterator[None]:
        """Runs those of Kubernetes, which make pods of Deployments. Skips the test where there are none."""
        if find("kube-controller-manager") is None:
            pytest.skip("not in PATH or the folder KUBEBUILDER_ASSETS: kube-controller-manager")
        words = [f"--kubeconfig={self._kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        with running("kube-controller-manager", self._folder, words):
            yield


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """An API server that answers. Skips the test, with the reason, where its programs are not installed."""
    if missing := [name for name in ("etcd", "kube-apiserver", "kubectl") if find(name) is None]:
        pytest.skip(f"not in PATH or the folder KUBEBUILDER_ASSETS: {', '.join(missing)}")
    client, peer, port = free_ports(3)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    etcd = [f"--data-dir={folder}/etcd", f"--initial-cluster=default=http://127.0.0.1:{peer}"]
    for kind, number in (("client", client), ("peer", peer)):
        etcd += [f"--listen-{kind}-urls=http://127.0.0.1:{number}"]
    etcd += [f"--advertise-client-urls=http://127.0.0.1:{client}", "--log-level=error"]
    etcd += [f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"]
    server = [
        f"--etcd-servers=http://127.0.0.1:{client}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running("etcd", folder, etcd))
        process = stack.enter_context(running("kube-apiserver", folder, server))
        found = Cluster(folder, f"https://127.0.0.1:{port}")
        ready = lambda: found.run("get", "--raw=/readyz").returncode == 0  # noqa: E731
        wait_until(lambda: process.poll() is not None or ready())
        assert process.poll() is None, (folder / "kube-apiserver.log").read_text()[-4000:]
        yield found


@contextlib.contextmanager
def running(name: str, folder: Path, words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A program that is killed at the end of the block. What it says is in FOLDER/NAME.log."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([str(find(name)), *words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write_kubeconfig(folder: Path, server: str) -> Path:
    """Writes kubectl's configuration for an administrator."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "here", "cluster": {"server": server, "certificate-authority": "authority.pem"}}
        ],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        "current-context": "here",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path
