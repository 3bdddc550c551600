"""The warning about services that other machines can reach."""

import logging

import pytest

from pagewire.config import FrontendConfig
from pagewire.supervisor.notices import exposure, is_loopback, log_exposure

TLS = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
@pytest.mark.parametrize("flags", [{}, TLS, {"auth_file": "f"}])
def test_on_loopback_there_is_nothing_to_warn_of(host, flags, caplog):
    config = FrontendConfig(host=host, **flags)
    assert exposure(config) is None
    with caplog.at_level(logging.INFO):
        log_exposure(config)
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "only this machine" in record.message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", ""])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, ["--auth-file", "--tls-cert"]),
        (TLS, ["--auth-file"]),
        ({"auth_file": "f"}, ["plain text", "--tls-cert"]),
        (TLS | {"auth_file": "f"}, []),
        (TLS | {"tls_client_ca": "a"}, []),
    ],
)
def test_elsewhere_there_is_one_line(host, flags, words, caplog):
    assert not is_loopback(host)
    log_exposure(FrontendConfig(host=host, **flags))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * bool(words)
    assert all(word in caplog.text for word in words)
    if words:
        assert ("--auth-file" in words) == ("--auth-file" in caplog.text)
        assert ("--tls-cert" in words) == ("--tls-cert" in caplog.text)


@pytest.mark.parametrize(
    ("flags", "warns"), [({}, True), ({"http_port": -1}, False), ({"http_host": "::1"}, False)]
)
def test_open_metrics_are_warned_of(flags, warns, caplog):
    log_exposure(FrontendConfig(**{"http_host": "0.0.0.0", **flags}))
    assert ("may read the metrics" in caplog.text) == warns
