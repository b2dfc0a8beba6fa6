import pytest

from sparkray.transport import tls


def test_tls_is_off_when_no_variable_is_set() -> None:
    assert tls.from_environment({}) is None


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ValueError, match="SPARKRAY_TLS_CERT, SPARKRAY_TLS_KEY"):
        tls.from_environment({"SPARKRAY_TLS_CA": "ca.pem"})
