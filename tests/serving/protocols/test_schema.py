"""The OpenAPI document is whole, tells no lie about what is accepted, and can be fuzzed from.

Real: document, parsing, writers, schemathesis. Faked: the answers, by scripts.
"""

import copy
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from request_bodies import VALID, json_values, outcome, places
from scripted_server import CALLS, PATHS, THOUGHT, WORDS, Script

from serving.exchange import Ask, RequestInvalid
from serving.protocols import anthropic_messages, chat, responses
from serving.protocols.schema import openapi

PROTOCOLS = {module.__name__: (path, module) for path, module in PATHS.items()}
FUZZED = schemathesis.openapi.from_dict(openapi())


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema | {"components": openapi()["components"]})


def body_schema(path: str) -> dict[str, Any]:
    operation = openapi()["paths"][path]["post"]
    schema: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema


def answer_schema(path: str, status: str) -> dict[str, Any]:
    answer = openapi()["paths"][path]["post"]["responses"][status]
    schema: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return schema


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_public_path_is_there() -> None:
    assert set(openapi()["paths"]) == {
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/feedback",
        "/v1/models",
        "/health",
        "/readiness",
        "/metrics",
    }


def test_every_reference_leads_to_a_sound_schema() -> None:
    schemas = openapi()["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in references(openapi())} <= set(
        schemas
    )
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert not [name for name in schemas if "__" in name]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_valid_request_fits_the_schema(name: str) -> None:
    validator(body_schema(PROTOCOLS[name][0])).validate(VALID[name])


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), value=json_values, drop=st.booleans())
def test_what_is_accepted_fits_the_schema(name: str, seed: int, value: Any, drop: bool) -> None:
    path, protocol = PROTOCOLS[name]
    raw = copy.deepcopy(VALID[name])
    container, key = random.Random(seed).choice(places(raw))
    if drop:
        del container[key]
    else:
        container[key] = value
    if isinstance(outcome(protocol, raw), Ask):
        validator(body_schema(path)).validate(raw)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_schemathesis_makes_is_an_ask_or_a_refusal(name: str) -> None:
    path, protocol = PROTOCOLS[name]

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=FUZZED[path]["POST"].as_strategy())
    def fuzz(case: schemathesis.Case) -> None:
        outcome(protocol, case.body)

    fuzz()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("script", [WORDS, THOUGHT, CALLS], ids=["words", "thought", "calls"])
def test_answers_fit_the_schema(name: str, script: Script) -> None:
    path, protocol = PROTOCOLS[name]
    ask = protocol.parse(VALID[name])
    answer = protocol.whole(script.reply(protocol.new_response_id(), ask), ask)
    validator(answer_schema(path, "200")).validate(answer)


@pytest.mark.parametrize("protocol", [chat, responses, anthropic_messages])
@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 415, 429, 502, 503, 504])
def test_errors_fit_the_schema(protocol: ModuleType, status: int) -> None:
    path = PROTOCOLS[protocol.__name__][0]
    problem = RequestInvalid("Not so.", param="model", status=status)
    validator(answer_schema(path, str(status))).validate(protocol.error_body(problem, "req_1"))
