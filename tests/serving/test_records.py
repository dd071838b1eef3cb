"""Proves what a record promises: content ids, strict fields, the way to OpenAI's form and back.

Nothing is faked.
"""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trace_records import hop

from serving.errors import InvalidAdapterName, MolError
from serving.records import (
    AdapterVersion,
    Feedback,
    Hop,
    Message,
    ToolCall,
    Turn,
    canonical_json,
    content_id,
    parse_adapter_name,
)

REPOSITORY = Path(__file__).parents[2]

FEEDBACK = Feedback(
    source="mol",
    target_kind="turn",
    target_id="t",
    kind="thumb",
    name="thumb",
    value=1.0,
    created_at=datetime(2026, 3, 1, tzinfo=UTC),
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    tool_calls=st.lists(calls, max_size=3).map(tuple),
    tool_call_id=st.none() | texts,
)


def test_an_id_is_the_digest_of_the_canonical_json() -> None:
    assert (
        content_id({"b": [1, "é"], "a": None})
        == "sha256:" + "f8f17faab95c024891d173fa43442b0e52007736a1f36715ac721ab22deeefc5"
    )


def test_the_order_of_keys_does_not_change_an_id() -> None:
    assert content_id({"a": 1, "b": 2}) == content_id({"b": 2, "a": 1})


def test_every_field_of_a_hop_is_part_of_its_id() -> None:
    one = hop()
    changed = [
        one.model_copy(update={"seq": 99}),
        one.model_copy(update={"error": "x"}),
        one.model_copy(update={"canary": True}),
        one.model_copy(update={"prompt_token_ids": (1, 2)}),
    ]

    assert len({record.hop_id for record in (one, *changed)}) == 5


def test_ids_survive_the_way_through_json() -> None:
    one = hop()

    assert Hop.model_validate_json(one.model_dump_json()).hop_id == one.hop_id
    assert Feedback.model_validate_json(FEEDBACK.model_dump_json()).feedback_id == (
        FEEDBACK.feedback_id
    )


def test_another_process_gives_the_same_id() -> None:
    program = (
        "import sys; from serving.records import Feedback;"
        "print(Feedback.model_validate_json(sys.argv[1]).feedback_id)"
    )
    command = [sys.executable, "-c", program, FEEDBACK.model_dump_json()]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == FEEDBACK.feedback_id


@settings(deadline=None, max_examples=50)
@given(messages)
def test_a_message_survives_openai_form(message: Message) -> None:
    assert Message.from_openai(message.to_openai()) == message


def test_content_parts_are_joined_and_images_left_out() -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "text", "text": None},
        {"type": "text", "text": " here."},
    ]

    assert Message.from_openai({"role": "user", "content": parts}).content == "Look here."


def test_a_missing_content_is_empty_and_object_arguments_become_text() -> None:
    raw = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"room": "küche"}}}],
    }

    message = Message.from_openai(raw)

    assert message.content == ""
    assert message.tool_calls == (ToolCall(id="", name="f", arguments='{"room": "küche"}'),)


def test_a_developer_is_a_system_and_an_unknown_role_is_refused() -> None:
    assert Message.from_openai({"role": "developer", "content": "x"}).role == "system"
    with pytest.raises(ValidationError, match="role"):
        Message.from_openai({"role": "wizard", "content": "x"})


@pytest.mark.parametrize("record", [Hop, Turn, Feedback, Message, ToolCall, AdapterVersion])
def test_an_unknown_key_is_refused(record: type) -> None:
    with pytest.raises(ValidationError, match="colour\n  Extra inputs are not permitted"):
        record.model_validate({"colour": "red"})


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        FEEDBACK.value = -1.0


def test_a_time_without_a_zone_is_refused() -> None:
    raw = FEEDBACK.model_dump() | {"created_at": datetime(2026, 3, 1)}

    with pytest.raises(ValidationError, match="timezone"):
        Feedback.model_validate(raw)


def test_a_served_name_parses_into_what_it_was_made_of() -> None:
    version = AdapterVersion(slot="L2", digest=content_id("weights"))

    slot, digest = parse_adapter_name(version.name)

    assert slot == "L2"
    assert version.digest.startswith("sha256:" + digest)
    assert len(digest) == 12


@pytest.mark.parametrize(
    "name",
    ["", "L2", "L2@", "@3fa9c1d2e4b5", "L2@3fa9c1d2e4b", "L2@3fa9c1d2e4b5a", "L2@3FA9C1D2E4B5",
     "L2@3fa9c1d2e4b5\n", " L2@3fa9c1d2e4b5", "2L@3fa9c1d2e4b5", "../L2@3fa9c1d2e4b5",
     "a b@3fa9c1d2e4b5"],
)  # fmt: skip
def test_another_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InvalidAdapterName) as refusal:
        parse_adapter_name(name)

    assert repr(name) in str(refusal.value)
    assert "flows adapters list" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert isinstance(refusal.value, MolError | ValueError)


@pytest.mark.parametrize(
    ("served", "slot", "digest"),
    [("L2@3fa9c1d2e4b5", "L2", "3fa9c1d2e4b5"), ("L2", "L2", None), (None, "L1", "aaaaaaaaaaaa")],
)
def test_a_hop_knows_slot_and_version_that_answered(served, slot, digest) -> None:
    one = hop().model_copy(update={"model": "L1@aaaaaaaaaaaa", "served_name": served})

    assert (one.slot, one.digest) == (slot, digest)


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": 1, "a": ["é", None, True]}) == '{"a":["é",null,true],"b":1}'
