"""Whatever JSON a client sends, parsing gives an ask or a clear refusal, and nothing else.

Hypothesis makes arbitrary JSON, as Python's own reader would take it (NaN, integers of
thousands of digits, lone surrogates), and valid requests with one part replaced.
"""

import copy
import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from request_bodies import HOSTILE, PROTOCOLS, VALID, json_values, outcome, places

from serving.exchange import Ask


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda module: module.__name__)
def test_the_valid_requests_are_valid(protocol: ModuleType) -> None:
    assert isinstance(outcome(protocol, VALID[protocol.__name__]), Ask)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda module: module.__name__)
@settings(max_examples=150, deadline=None)
@given(raw=json_values)
def test_any_json_is_an_ask_or_a_refusal(protocol: ModuleType, raw: Any) -> None:
    outcome(protocol, raw)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda module: module.__name__)
@settings(max_examples=150, deadline=None)
@given(fields=st.data())
def test_any_field_values_are_an_ask_or_a_refusal(protocol: ModuleType, fields: Any) -> None:
    valid = VALID[protocol.__name__]
    names = st.sampled_from(sorted(valid))
    outcome(protocol, valid | fields.draw(st.dictionaries(names, json_values, max_size=2)))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda module: module.__name__)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), value=json_values, drop=st.booleans())
def test_a_mutated_request_is_an_ask_or_a_refusal(
    protocol: ModuleType, seed: int, value: Any, drop: bool
) -> None:
    raw = copy.deepcopy(VALID[protocol.__name__])
    container, key = random.Random(seed).choice(places(raw))
    if drop:
        del container[key]
    else:
        container[key] = value
    outcome(protocol, raw)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_part_that_is_no_plain_json_is_refused_or_ignored_everywhere(
    protocol: ModuleType, name: str
) -> None:
    valid = VALID[protocol.__name__]
    for at in range(len(places(valid))):
        raw = copy.deepcopy(valid)
        container, key = places(raw)[at]
        container[key] = HOSTILE[name]
        outcome(protocol, raw)
