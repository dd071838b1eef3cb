"""Addresses as messages and records may show them: without what may be a secret in them."""

import re

_FIRST_USER = re.compile(r"(?<=://).*@|^[^/@]*:[^/@].*@", re.DOTALL)
_USER = re.compile(r"(?<=://)[^\s'\"]*@")
_VALUE = re.compile(
    r"([?&][^=&\s'\"]*(?:pass|secret|token|key|sig|credential)[^=&\s'\"]*=)[^&\s'\"]+", re.I
)


def shown_address(address: str) -> str:
    """Return one URL without user, password and secret values, whatever characters they have."""
    return _VALUE.sub(r"\1***", _FIRST_USER.sub("***@", address))


def without_secrets(text: str) -> str:
    """Return a text with user, password and secret values taken out of every URL in it.

    Where a URL ends at a blank or a quote, as it does unless somebody wrote it by hand.
    """
    return _VALUE.sub(r"\1***", _USER.sub("***@", text))
