"""Proves that texts which defeat naive patterns are looked through in bounded time.

Patterns that go back over a text for each of its characters would take minutes here.
"""

import pytest
from trace_records import says

from traces.attribution.right_answer import form_of
from traces.verifiers.interface import check_interface

OPEN_FENCES = ["```" + " " * 300_000, "```json" + "\n" * 300_000, "```" + "a" * 300_000]


@pytest.mark.parametrize("text", OPEN_FENCES, ids=["spaces", "lines", "letters"])
def test_a_fence_that_nobody_closed(text: str) -> None:
    assert check_interface(text, ()).detail == "not JSON"
    assert form_of(says(text)) == "text"


def test_a_fence_around_an_answer_counts_for_nothing() -> None:
    card = '{"type": "card", "title": "A", "children": [{"type": "text", "value": "b"}]}'

    assert check_interface(f"Here:\n```json\n\u00a0{card}\n```", ()).passed
    assert form_of(says(f"```json\n{card}\n```")) == "json"
    assert form_of(says("```python\ndef f():\n    return 1\n```")) == "code"
