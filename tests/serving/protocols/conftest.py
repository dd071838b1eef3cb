"""The scripted server and the official clients that talk to it."""

from collections.abc import Iterator

import pytest
from anthropic import Anthropic
from openai import OpenAI
from scripted_server import WORDS, ScriptedServer


@pytest.fixture(scope="session")
def running_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(running_server: ScriptedServer) -> ScriptedServer:
    """The server with its first script and no requests so far."""
    running_server.script = WORDS
    running_server.asks.clear()
    return running_server


@pytest.fixture
def openai_client(server: ScriptedServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def anthropic_client(server: ScriptedServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="k", max_retries=0, timeout=20) as client:
        yield client
