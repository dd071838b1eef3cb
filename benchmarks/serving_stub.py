"""An engine that answers at once, so that a measurement sees what stands before it.

    python -m benchmarks.serving_stub --port N [--names L0,L1,L2,L3]

It speaks as vLLM does: chat completions, plain and as a stream, with token ids, usage and
log-probabilities where they are asked for; constrained choices; adapters loaded and unloaded
by name, 404 for a name that is not there. Answers are rendered once and sent as bytes; only
their ids differ. `GET /counts` tells how many chats of
more than a token each name was asked for.
"""

import argparse
import asyncio
import time
from collections import Counter
from itertools import count
from typing import Any, cast

import orjson
import uvloop

from serving.child import HOST

BASE_NAME = "base"
ANSWER = (
    "The build fails because the lock file is older than the manifest. Run the resolver again, "
    "commit what it writes, and pin the interpreter in the same change so that it stays fixed."
)
_ID = "chatcmpl-0000000000000000"
_JSON, _EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
_PIECE_WORDS = 2
_TOKENS_PER_KIB = 256
_SCATTER = 2654435761
"""Knuth's multiplicative hash: 2**32 over the golden ratio."""


class InstantEngine:
    """What the connections share: names, counts and rendered answers."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.base_names = (BASE_NAME, *names)
        self.adapters: dict[str, str] = {}
        self.chats: Counter[str] = Counter()
        self.refused = 0
        """Chats for a name that is not there."""
        self._number = count(time.monotonic_ns())
        self._rendered: dict[tuple[Any, ...], list[bytes]] = {}

    def respond(self, method: bytes, path: bytes, body: bytes) -> bytes:
        """Return the whole response to a request, its head too."""
        if path == b"/v1/chat/completions":
            return self._chat(orjson.loads(body), len(body))
        if path == b"/health":
            return _response(200, b"", _JSON)
        if path == b"/v1/models":
            names = (*self.base_names, *self.adapters)
            cards = [{"id": name, "object": "model"} for name in names]
            return _json(200, {"object": "list", "data": cards})
        if path == b"/counts":
            return _json(200, {"chats": self.chats, "refused": self.refused})
        if path == b"/v1/load_lora_adapter":
            return self._load(orjson.loads(body))
        if path == b"/v1/unload_lora_adapter":
            name = orjson.loads(body)["lora_name"]
            if self.adapters.pop(name, None) is None:
                return _error(404, f"The lora adapter '{name}' cannot be found.")
            return _response(200, b"Success", b"text/plain")
        return _error(404, "Not Found")

    def _load(self, body: dict[str, Any]) -> bytes:
        name = body["lora_name"]
        if name in self.adapters or name in self.base_names:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        self.adapters[name] = body["lora_path"]
        return _response(200, b"Success", b"text/plain")

    def _chat(self, body: dict[str, Any], size: int) -> bytes:
        model = body["model"]
        if model not in self.adapters and model not in self.base_names:
            self.refused += 1
            return _error(404, f"The model `{model}` does not exist.")
        # One token is what a server asks for to see whether a name serves.
        if body.get("max_tokens") != 1:
            self.chats[model] += 1
        number = next(self._number)
        choices = (body.get("structured_outputs") or {}).get("choice")
        # Scattered, so that no server's rhythm of hops always meets the same choice.
        text = choices[(number * _SCATTER >> 32) % len(choices)] if choices else ANSWER
        with_ids = bool(body.get("return_token_ids"))
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        streams, logprobs = bool(body.get("stream")), bool(body.get("logprobs"))
        prompt_tokens = max(1, size + 512 >> 10) * _TOKENS_PER_KIB
        key = (model, text, streams, with_ids, logprobs, with_usage, prompt_tokens)
        parts = self._rendered.get(key)
        if parts is None:
            answer = _Answer(model, text, with_ids, logprobs, prompt_tokens)
            whole = answer.events(with_usage) if streams else answer.whole()
            parts = self._rendered[key] = whole.split(_ID.encode())
        return (b"chatcmpl-%016x" % number).join(parts)


class _Answer:
    """One rendered answer."""

    def __init__(
        self, model: str, text: str, with_ids: bool, logprobs: bool, prompt_tokens: int
    ) -> None:
        self.head = {"id": _ID, "created": int(time.time()), "model": model}
        self.text, self.with_ids, self.logprobs = text, with_ids, logprobs
        self.prompt_ids = list(range(1000, 1000 + prompt_tokens))
        self.words = [word + " " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]]

    def whole(self) -> bytes:
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": self.text},
            "logprobs": self._logprobs(self.words),
            "finish_reason": "stop",
        }
        raw = self.head | {"object": "chat.completion", "usage": self._usage()}
        if self.with_ids:
            choice["token_ids"] = self._ids(self.words)
            raw["prompt_token_ids"] = self.prompt_ids
        return _json(200, raw | {"choices": [choice]})

    def events(self, with_usage: bool) -> bytes:
        """Return the stream with its head: an HTTP chunk for every event, as vLLM sends it."""
        made = [self._chunk({"role": "assistant", "content": ""})]
        if self.with_ids:
            made[0]["prompt_token_ids"] = self.prompt_ids
        for n in range(0, len(self.words), _PIECE_WORDS):
            words = self.words[n : n + _PIECE_WORDS]
            chunk = self._chunk({"content": "".join(words)})
            chunk["choices"][0]["logprobs"] = self._logprobs(words)
            if self.with_ids:
                chunk["choices"][0]["token_ids"] = self._ids(words)
            made.append(chunk)
        made.append(self._chunk({}, "stop"))
        if with_usage:
            made.append(self._chunk({}) | {"choices": [], "usage": self._usage()})
        events = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in made]
        chunks = [b"%x\r\n%b\r\n" % (len(e), e) for e in (*events, b"data: [DONE]\n\n", b"")]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
        return head % _EVENTS + b"".join(chunks)

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self.head | {"object": "chat.completion.chunk", "choices": [choice]}

    def _usage(self) -> dict[str, Any]:
        prompt, said = len(self.prompt_ids), len(self.words)
        details = {"cached_tokens": 0}
        return {
            "prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said,
            "prompt_tokens_details": details,
        }  # fmt: skip

    def _logprobs(self, words: list[str]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        return {
            "content": [
                {"token": w, "logprob": -0.1, "bytes": None, "top_logprobs": []} for w in words
            ]
        }

    def _ids(self, words: list[str]) -> list[int]:
        return [len(word) for word in words]


class _Connection(asyncio.Protocol):
    """One client's connection; answers in the order of the requests."""

    def __init__(self, engine: InstantEngine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._read = self._read + data if self._read else data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end]
            size = _content_length(head)
            if len(self._read) < end + 4 + size:
                return
            body = self._read[end + 4 : end + 4 + size]
            self._read = self._read[end + 4 + size :]
            method, path, _ = head.split(b" ", 2)
            self._transport.write(self._engine.respond(method, path, body))


def _content_length(head: bytes) -> int:
    lower = head.lower()
    begin = lower.find(b"\r\ncontent-length:")
    if begin < 0:
        return 0
    begin += 17
    end = lower.find(b"\r\n", begin)
    return int(lower[begin : end if end >= 0 else None])


def _json(status: int, value: Any) -> bytes:
    return _response(status, orjson.dumps(value), _JSON)


def _error(status: int, message: str) -> bytes:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return _json(
        status, {"error": {"message": message, "type": kind, "param": None, "code": status}}
    )


def _response(status: int, body: bytes, kind: bytes) -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


async def serve(engine: InstantEngine, port: int) -> None:
    """Answer on a loopback port until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(engine), HOST, port, backlog=2048)
    await server.serve_forever()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--names", default="", help="names that are there from the start")
    arguments = parser.parse_args()
    names = tuple(name for name in arguments.names.split(",") if name)
    uvloop.run(serve(InstantEngine(names), arguments.port))


if __name__ == "__main__":
    main()
