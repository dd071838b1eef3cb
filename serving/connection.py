"""One client's connection: uvicorn's, with a time limit and a size limit for a request's head.

Uvicorn leaves both to a proxy in front. Without them a client that sends half a head, or one
without end, costs a connection or memory for as long as it likes.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 30.0
"""For a client to send a request's head, the first as well as later ones."""
MAX_HEAD_BYTES = 64 << 10


class Connection(HttpToolsProtocol):
    """See the module's text."""

    head_s = HEAD_S
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop_waiting()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; where all has been answered, wait for the next request as uvicorn does."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._stop_waiting()
                self.send_400_response("The request's head is too long.")
        elif self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # What came was the rest of a body that nobody wanted.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """Begin with a request's head."""
        super().on_message_begin()
        if self._deadline is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """End a request's head."""
        self._stop_waiting()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connections(head_s: float) -> Any:
    """Return a protocol class with a limit of its own, for uvicorn's `http`."""
    return type("Connection", (Connection,), {"head_s": head_s})
