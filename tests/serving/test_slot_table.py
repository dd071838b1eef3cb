"""Proves what a slot table may say, that old ones are read, and what it makes of a profile.

Nothing is faked: real files, the default profile.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from serving.slot_table import (
    SlotEntry,
    SlotFile,
    SlotTableInvalid,
    effective_profile,
    parse_slot_file,
    read_slot_file,
    traits_of,
    write_slot_file,
)
from serving.slots import load_profile

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
SERVED = {"champion": "L2@" + "a" * 12, "digest": DIGEST, "path": "adapters/a"}
CANARY = {"canary": "L2@" + "b" * 12, "canary_digest": OTHER, "canary_path": "adapters/b"}
PROFILE = load_profile()


def table_of(**traits: dict[str, Any]) -> SlotFile:
    return SlotFile(slots=tuple(SlotEntry(slot=s, **fields) for s, fields in traits.items()))


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    table = table_of(L1={"tier": "extra", "routing_rule": "light"}, L2=SERVED | CANARY)
    write_slot_file(tmp_path / "slots.json", table)
    assert read_slot_file(tmp_path / "slots.json") == table


def test_a_table_of_before_roles_and_canaries_is_read() -> None:
    old = {"slot": "L2", **SERVED, "previous": "base", "generation": 3}
    data = json.dumps({"schema_version": 1, "slots": [old]}).encode()
    (entry,) = parse_slot_file(data).slots
    assert (entry.champion, entry.generation) == (SERVED["champion"], 3)
    assert (entry.role, entry.tier, entry.canary, entry.canary_percent) == (
        "expert", "core", None, 0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/etc", "../outside", "adapters/../../x", "", ".", "..", "a\0b", "//server/x"]
)
@pytest.mark.parametrize("field", ["path", "canary_path"])
def test_a_path_outside_the_home_is_refused(path: str, field: str) -> None:
    fields = SERVED | CANARY | {field: path}
    with pytest.raises(ValidationError, match="relative to the home folder"):
        SlotEntry(slot="L2", **fields)


@pytest.mark.parametrize(
    "name",
    [
        "L2", "L2@", "L2@aaaaaaaaaaa", "L2@aaaaaaaaaaaaa", "L2@AAAAAAAAAAAA", "@aaaaaaaaaaaa",
        "L2@gggggggggggg", "L2@aaaaaaaaaaaa\n", "../L2@aaaaaaaaaaaa", "base", "",
    ],
)  # fmt: skip
def test_a_name_that_is_not_slot_and_digest_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="12 hex digits"):
        SlotEntry(slot="L2", **SERVED | {"champion": name})
    with pytest.raises(ValidationError, match="12 hex digits"):
        SlotEntry(slot="L2", **SERVED | CANARY | {"canary": name})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (SERVED | {"champion": "L1@" + "a" * 12}, "not the name of digest"),
        (SERVED | {"champion": "L2@" + "b" * 12}, "not the name of digest"),
        (SERVED | {"digest": "sha256:" + "a" * 12}, "digest"),
        (SERVED | {"path": None}, "needs name, digest and path"),
        (SERVED | {"digest": None}, "needs name, digest and path"),
        (SERVED | {"champion": None}, "needs name, digest and path"),
        (SERVED | {"canary_percent": 5}, "needs a canary"),
        (SERVED | CANARY | {"canary_percent": 101}, "less than or equal to 100"),
        (SERVED | CANARY | {"canary_percent": -1}, "greater than or equal to 0"),
        (SERVED | CANARY | {"canary_percent": float("nan")}, "canary_percent"),
        (SERVED | {"generation": -1}, "greater than or equal to 0"),
        (SERVED | {"role": "boss"}, "'router', 'expert' or 'head'"),
        (SERVED | {"tier": "gold"}, "'core' or 'extra'"),
        (SERVED | {"speed": 3}, "Extra inputs"),
        (
            SERVED
            | {
                f"canary{k}": v
                for k, v in zip(("", "_digest", "_path"), SERVED.values(), strict=True)
            },
            "is the champion already",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        SlotEntry(slot="L2", **fields)


@pytest.mark.parametrize("slot", ["", "2L", "L/2", "..", "L2@x", "L" * 33, "L2\n"])
def test_a_slot_needs_a_plain_name(slot: str) -> None:
    with pytest.raises(ValidationError, match="slot"):
        SlotEntry(slot=slot)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "as a whole"),
        (b"{", "as a whole"),
        (b"[1]", "as a whole"),
        (b"\x00\xff", "as a whole"),
        (b"[" * 100_000, "as a whole"),
        (b"{}", "slots"),
        (b'{"slots": [{"slot": 3}]}', "slots.0.slot"),
        (b'{"slots": [{"slot": "L2"}, {"slot": "L2"}]}', "twice"),
        (b'{"schema_version": 2, "slots": []}', "schema_version 2"),
    ],
)
def test_a_broken_file_is_one_line_that_names_the_field(
    tmp_path: Path, data: bytes, text: str
) -> None:
    (tmp_path / "slots.json").write_bytes(data)
    with pytest.raises(SlotTableInvalid, match=text) as refusal:
        read_slot_file(tmp_path / "slots.json")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SlotTableInvalid, match="Cannot read"):
        read_slot_file(tmp_path / "slots.json")


def test_the_registrys_copy_of_the_profile_changes_nothing() -> None:
    slots = reversed(PROFILE.slots)
    table = SlotFile(
        slots=tuple(SlotEntry(slot=s.name, **traits_of(PROFILE, s).model_dump()) for s in slots)
    )
    assert effective_profile(PROFILE, table) == PROFILE
    assert effective_profile(PROFILE, SlotFile(slots=())) is PROFILE


def test_a_slot_of_the_table_alone_is_a_slot() -> None:
    table = table_of(
        L0={}, L1={}, L4={"description": "law", "system": "Be exact.", "offers_tools": True},
    )  # fmt: skip
    profile = effective_profile(PROFILE, table)
    assert profile.labels == ("L0", "L1", "L4")
    law = profile.slot("L4")
    assert (law.description, law.system, law.offers_tools) == ("law", "Be exact.", True)
    assert profile.digest != PROFILE.digest


def test_a_description_of_the_table_wins_and_prompts_stay_the_profiles() -> None:
    table = table_of(L0={}, L2={"description": "Rust", "system": "no", "offers_tools": True})
    slot = effective_profile(PROFILE, table).slot("L2")
    assert slot == PROFILE.slot("L2").model_copy(update={"description": "Rust"})


def test_a_head_is_no_slot_to_route_to() -> None:
    table = table_of(L0={}, L2={}, router={"role": "head"})
    assert effective_profile(PROFILE, table).labels == ("L0", "L2")


def test_the_router_stays_whatever_the_table_says() -> None:
    assert effective_profile(PROFILE, table_of(L4={"description": "law"})).labels == ("L0", "L4")
