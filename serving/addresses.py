"""Addresses as settings may keep and messages may show them, and where the key of one is."""

import os
import re
from collections.abc import Mapping

ENGINE_KEY = "MOL_ENGINE_KEY"
"""Environment variable with the API key of the engine's servers."""

_FIRST_USER = re.compile(r"(?<=://).*@|^[^/@]*:[^/@].*@", re.DOTALL)
_USER = re.compile(r"(?<=://)[^\s'\"]*@")
_VALUE = re.compile(
    r"([?&][^=&\s'\"]*(?:pass|secret|token|key|sig|credential)[^=&\s'\"]*=)[^&\s'\"]+", re.I
)


def engine_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the API key of the engine's servers, None if there is none; a secret."""
    return environment.get(ENGINE_KEY, "").strip() or None


def refuse_secrets(address: str, key: str) -> str:
    """Return the address of a server as settings may keep it.

    Raises:
        ValueError: if it holds a user, a password or a query; `key` is the environment variable
            that holds the server's API key.
    """
    if set("@?#") & set(address):
        raise ValueError(
            "settings are stored, so an address has no user, password or query in it; the key is "
            f"{key} in the environment"
        )
    return address


def shown_address(address: str) -> str:
    """Return one URL without user, password and secret values, whatever characters they have."""
    return _VALUE.sub(r"\1***", _FIRST_USER.sub("***@", address))


def without_secrets(text: str) -> str:
    """Return a text with user, password and secret values taken out of every URL in it.

    Where a URL ends at a blank or a quote, as it does unless somebody wrote it by hand.
    """
    return _VALUE.sub(r"\1***", _USER.sub("***@", text))
