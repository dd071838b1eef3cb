"""No secret of an address is shown. Nothing is faked."""

import pytest

from serving.addresses import shown_address, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hun@ter2@db:5433/x", "postgresql://***@db:5433/x"),
        ("call of http://a:b@h/api failed", "call of http://***@h/api failed"),
        ('{"u": "http://t@h", "v": "a@b"}', '{"u": "http://***@h", "v": "a@b"}'),
        ("s3://b/k?X-Amz-Signature=abc&part=1", "s3://b/k?X-Amz-Signature=***&part=1"),
        ("postgresql://db/x?password=abc", "postgresql://db/x?password=***"),
        ("sqlite:///registry.sqlite", "sqlite:///registry.sqlite"),
    ],
)
def test_what_may_be_a_secret_is_left_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_of_one_address_any_password_is_left_out() -> None:
    assert shown_address("postgresql://me:a pass'w@rd@db/x") == "postgresql://***@db/x"
    assert shown_address("me:pass@db:80/x") == "***@db:80/x"
    assert shown_address("L2@77aa") == "L2@77aa"
