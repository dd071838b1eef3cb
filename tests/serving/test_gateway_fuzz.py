"""Proves that no request that the public API's schema describes, or nearly describes, is a 500.

Schemathesis makes requests from the OpenAPI document, valid and broken ones, and checks each
answer against it: status, content type, body, headers. The engine is a stub over HTTP; the
server is real. The same requests are made every time; `MOL_FUZZ_EXAMPLES=1000` asks for so
many an endpoint, drawn anew, and for every limit of every field besides.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from gateway_answers import slots_answer
from hypothesis import HealthCheck, settings
from mol_server import mol_server
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)
from stub_engine import stub_engine

from serving.protocols.schema import openapi

EXAMPLES = int(os.environ.get("MOL_FUZZ_EXAMPLES", "0"))
KEY = "a-key-of-a-fuzzer-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, requests.Session]]:
    home: Path = tmp_path_factory.mktemp("mol")
    with (
        stub_engine() as stub,
        mol_server(home, stub.url, environment={"MOL_API_KEYS": KEY}) as mol,
        requests.Session() as session,
    ):
        stub.reply = slots_answer("L0", "Fine.")
        session.headers["Authorization"] = f"Bearer {KEY}"
        yield mol.url, session
        mol.settle()
        services = mol.server.services
        assert services.recorder.stats().dropped == {}
        assert services.admission.running == 0
        # A proxy's hop waits for the next one of its turn; nothing else keeps a version.
        hops = len(services.passthrough.leases._keys)
        assert services.versions.held == hops


SCHEMA = schemathesis.openapi.from_dict(openapi())
SCHEMA.config.generation.update(modes=list(GenerationMode))
SCHEMA.config.phases.coverage.enabled = bool(EXAMPLES)  # every limit of every field: minutes
LIMITS: Any = settings(
    max_examples=EXAMPLES or 40,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def with_a_model(body: Any, is_valid: bool) -> Any:
    """Let most requests name a model that there is, which no chance would find."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    # What is wrong in a hop for a slot is the engine's to say, and this one is no judge of it.
    names = ["mol", "mol", "L2" if is_valid else "mol", body["model"]]
    return body | {"model": names[len(repr(body)) % len(names)]}


@SCHEMA.parametrize()
@LIMITS
def test_every_answer_is_one_that_the_schema_declares(case, server) -> None:
    url, session = server
    # Who knows no tool call of ours cannot answer it, and other rules no schema can tell; that
    # keys are needed is shown in `test_gateway_access`.
    beyond_schema = [positive_data_acceptance, negative_data_rejection, ignored_auth]

    case.body = with_a_model(case.body, case.meta.generation.mode.is_positive)

    answer = case.call_and_validate(
        base_url=url, session=session, excluded_checks=beyond_schema, timeout=30
    )

    assert answer.status_code < 500
    assert "x-request-id" in answer.headers
    assert "Traceback" not in answer.text
