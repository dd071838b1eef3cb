"""Runs the OTLP endpoint in a thread, and makes spans with the real SDK and its exporter."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from serving.config import OtlpConfig, ServeConfig
from serving.serve import collecting

LIMIT_S = 30.0
ASKED = '[{"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]}]'
SAID = '[{"role": "assistant", "parts": [{"type": "text", "content": "Rainy."}]}]'


@contextlib.contextmanager
def otlp_server(
    home: Path, environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator[str]:
    """Yield the address of an endpoint that runs meanwhile."""
    config = ServeConfig(otlp=OtlpConfig(enabled=True, port=0, **options))
    ready, stop = threading.Event(), asyncio.Event()
    told: dict[str, Any] = {}

    async def main() -> None:
        told["loop"] = asyncio.get_running_loop()
        async with collecting(home, config, environment or {}) as server:
            told["url"] = server.url
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(LIMIT_S)
        yield told["url"]
    finally:
        told["loop"].call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def exporting(url: str, compression: Compression, **headers: str) -> Iterator[TracerProvider]:
    """Yield a tracer provider of the real SDK; at the end everything was exported to `url`."""
    provider = TracerProvider(resource=Resource({"service.name": "router"}))
    exporter = OTLPSpanExporter(
        endpoint=f"{url}/v1/traces", compression=compression, headers=headers, timeout=LIMIT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider
        assert provider.force_flush()
    finally:
        provider.shutdown()


def chat_span(provider: TracerProvider, session: str, response_id: str) -> None:
    """Make one span of a chat call."""
    with provider.get_tracer("test").start_as_current_span("chat support") as span:
        span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "support",
                "gen_ai.response.model": "support@v3",
                "gen_ai.response.id": response_id,
                "gen_ai.conversation.id": session,
                "gen_ai.response.finish_reasons": ["stop"],
                "gen_ai.usage.input_tokens": 9,
                "gen_ai.usage.output_tokens": 2,
                "gen_ai.input.messages": ASKED,
                "gen_ai.output.messages": SAID,
            }
        )
