"""Proves that a profile is what it says, and that a bad one is refused in one clear line.

Nothing is faked.
"""

from pathlib import Path

import pytest

from serving.errors import MolError
from serving.own_view import route_view
from serving.slots import DEFAULT_PROFILE, ProfileInvalid, UnknownSlot, load_profile

TEXT = DEFAULT_PROFILE.read_text()


def test_the_default_profile_has_four_slots_and_one_with_tools() -> None:
    profile = load_profile()

    assert profile.labels == ("L0", "L1", "L2", "L3")
    assert [slot.name for slot in profile.slots if slot.offers_tools] == ["L1"]
    assert profile.router == "L0"


def test_every_default_slot_has_a_verifier_of_its_own() -> None:
    verifiers = [name for slot in load_profile().slots for name in slot.verifiers]

    assert len(verifiers) == len(set(verifiers)) == 4


def test_the_digest_follows_the_content_and_not_the_file(tmp_path: Path) -> None:
    moved, edited = tmp_path / "moved.toml", tmp_path / "edited.toml"
    moved.write_text("# a comment\n" + TEXT)
    edited.write_text(TEXT.replace("You run the home.", "You run the house."))

    assert load_profile(moved).digest == load_profile().digest
    assert load_profile(edited).digest != load_profile().digest


def test_the_user_may_write_braces() -> None:
    view = route_view(load_profile(), 'What is {"a": 1} and {slots}?')

    assert '{"a": 1} and {slots}?' in view[0].content


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("router = ", "Invalid value"),
        ("colour = 'red'\n" + TEXT, "colour: Extra inputs are not permitted, got 'red'"),
        (TEXT + "colour = 'red'\n", "slots.3.colour: Extra inputs are not permitted"),
        (TEXT.replace("max_answer_tokens = 72", "max_answer_tokens = 0"), "max_answer_tokens"),
        (TEXT.replace('name = "L3"', 'name = "3L"'), "slots.3.name"),
        (TEXT.replace('name = "L3"', 'name = "L2"'), "slot names must differ"),
        (TEXT.replace('router = "L0"', 'router = "L9"'), "router 'L9' is none of L0, L1"),
        (TEXT.replace("{labels}", "{lables}"), "route_prompt takes {text}"),
        (TEXT.replace("{summaries}", "{"), "handover_template"),
        ("", "slots: Field required"),
    ],
)
def test_a_bad_profile_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)

    with pytest.raises(ProfileInvalid) as refusal:
        load_profile(path)

    line = str(refusal.value)
    assert told in line
    assert str(path) in line
    assert DEFAULT_PROFILE.name in line
    assert len(line.splitlines()) == 1
    assert len(line) < 500
    assert isinstance(refusal.value, MolError)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", "folder"])
def test_an_unreadable_profile_is_refused(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "mine.toml"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)

    with pytest.raises(ProfileInvalid, match=r"Cannot read the profile .*mine\.toml"):
        load_profile(path)


def test_an_unknown_slot_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownSlot) as refusal:
        load_profile().slot("L9")

    assert str(refusal.value) == (
        "No slot 'L9'; the profile has L0, L1, L2, L3. Choose one of them with '--slot'."
    )
