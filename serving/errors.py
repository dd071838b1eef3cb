"""The one base class of this project's errors, and those of serving.

An error's text says what is wrong, the value, what is allowed and what to do
next; the `flows` command prints it as one line without a traceback.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.engine import ChatResult


class MolError(Exception):
    """A known error with a message meant for the person at the command line."""


class InvalidAdapterName(MolError, ValueError):
    """A served name is not `<slot>@<12 hex digits>`."""


class EngineUnavailable(MolError, ConnectionError):
    """The engine does not answer, or not as an OpenAI-compatible server would."""

    timed_out = False
    """Whether it was reached and took too long; asking again would take as long."""


class BrokenAnswer(EngineUnavailable):
    """The engine stopped in the middle of an answer."""

    def __init__(self, message: str, partial: "ChatResult | None" = None) -> None:
        super().__init__(message)
        self.partial = partial
        """What of the answer had come, where it was streamed; its `finish_reason` is empty."""


class EngineRefused(MolError, RuntimeError):
    """The engine answered a call with an error status."""

    def __init__(self, message: str, status: int = 500, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status it answered with."""
        self.detail = detail
        """The engine's own words, without its address."""

    @property
    def of_the_request(self) -> bool:
        """Whether it says something of this one request; other statuses are of the server."""
        return self.status in (400, 413, 422)


class AdapterNotServable(MolError, ValueError):
    """An adapter folder is not what an engine can load (format, rank, base, modules)."""
