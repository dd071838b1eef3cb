"""An engine that remembers greedy answers in a file: a recording goes on where it was stopped.

A call that was answered before gets the same answer under a new response id, as greedy decoding
would give it; one with a temperature is remembered by its seed.
"""

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.engine import ChatRequest, ChatResult, Engine, OnDelta
from serving.records import Message, content_id


class RememberedEngine:
    """`engine`, with its answers kept in `path`."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._known: dict[str, ChatResult] = {}
        self.asked = 0
        """Calls that the engine answered itself."""
        if path.is_file():
            for line in path.read_text().splitlines():
                raw = json.loads(line)
                key = raw.pop("key")
                self._known[key] = _result(raw)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Answer from memory, else from the engine."""
        key = _key(request)
        known = self._known.get(key)
        if known is None:
            answer = await self._engine.chat(request, on_delta)
            # Token ids would be most of what a recording weighs, and blame needs none.
            known = replace(answer, prompt_token_ids=None, completion_token_ids=None)
            self._known[key] = known
            self.asked += 1
            self._file.write(json.dumps({"key": key, **_raw(known)}) + "\n")
            self._file.flush()
        return replace(known, response_id=f"chatcmpl-{uuid.uuid4().hex[:24]}")

    async def close(self) -> None:
        """Close the file and the engine."""
        self._file.close()
        await self._engine.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _key(request: ChatRequest) -> str:
    return content_id([
        request.model, [m.to_openai() for m in request.messages], list(request.tools),
        request.max_tokens, request.temperature, request.seed, list(request.choices),
    ])  # fmt: skip


def _raw(result: ChatResult) -> dict[str, Any]:
    names = (
        "served_name", "finish_reason", "prompt_tokens", "completion_tokens",
        "choice_probability", "duration_s",
    )  # fmt: skip
    raw = {name: getattr(result, name) for name in names}
    return raw | {"message": result.message.model_dump(mode="json")}


def _result(raw: dict[str, Any]) -> ChatResult:
    message = Message.model_validate(raw.pop("message"))
    return ChatResult(response_id="", message=message, **raw)
