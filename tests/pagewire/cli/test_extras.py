"""Flags whose combination makes no sense."""

import pytest

from pagewire.cli import extras
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import UsageError


@pytest.mark.parametrize(
    ("field", "flag"), [("auth_file", "--auth-file"), ("tls_client_ca", "--tls-client-ca")]
)
def test_a_service_that_smg_could_not_call_is_refused_by_name(monkeypatch, field, flag):
    monkeypatch.setattr(extras, "require_gateway", lambda: None)
    extras.check_gateway(ServeConfig(**{field: "x"}))
    extras.check_gateway(ServeConfig(gateway=0))
    with pytest.raises(UsageError) as refused:
        extras.check_gateway(ServeConfig(gateway=0, **{field: "x"}))
    assert flag in refused.value.what


def test_a_gateway_that_is_not_installed_is_refused_with_the_extras_name(monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(StartupError) as refused:
        extras.check_gateway(ServeConfig(gateway=0))
    assert refused.value.why == "smg is not installed" and "gateway" in refused.value.todo
