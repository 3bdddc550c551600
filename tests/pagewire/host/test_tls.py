"""What is said of certificates that can be used, and yet may surprise."""

import datetime
import os
from pathlib import Path

import pytest
import trustme

from pagewire.host.tls import warnings_about

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def write(folder: Path, **options) -> tuple[Path, Path]:
    issued = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("localhost", **options)
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    key.touch(mode=0o600)
    issued.private_key_pem.write_to_path(key)
    return cert, key


def test_nothing_to_say(tmp_path):
    assert warnings_about(*write(tmp_path)) == []


@pytest.mark.parametrize(
    ("not_before", "not_after", "words"),
    [
        (NOW - 9 * DAY, NOW - DAY, "has expired"),
        (NOW + DAY, NOW + 9 * DAY, "not valid yet"),
        (NOW - DAY, NOW + 3 * DAY, "expires in 3.0 days"),
    ],
)
def test_time(tmp_path, not_before, not_after, words):
    (warning,) = warnings_about(*write(tmp_path, not_before=not_before, not_after=not_after))
    assert words in warning


def test_a_world_readable_key(tmp_path):
    cert, key = write(tmp_path)
    key.chmod(0o644)
    (warning,) = warnings_about(cert, key)
    assert "can read the key: its mode is 0644" in warning


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_key_of_another_user(tmp_path):
    cert, key = write(tmp_path)
    os.chown(key, 65534, -1)
    (warning,) = warnings_about(cert, key)
    assert "can read the key: it belongs to user 65534" in warning
