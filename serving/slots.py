"""The slot table and the harness profile: which slots there are and the prompts in force.

A profile is data: its digest goes on every hop, so that a prompt change is
visible in the traces.
"""

import tomllib
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from serving.errors import MolError
from serving.records import SLOT_PATTERN, Record, content_id


class ProfileInvalid(MolError, ValueError):
    """A profile file cannot be read or breaks the schema."""


class UnknownSlot(MolError, KeyError):
    """A slot is named that the profile does not have."""

    def __str__(self) -> str:
        """Return the message as it is; KeyError would quote it."""
        return str(self.args[0])


class Slot(Record):
    """A named place for one adapter."""

    name: str = Field(pattern=SLOT_PATTERN)
    description: str
    """What the router is told about it."""
    system: str
    """System prompt of its answer hops."""
    offers_tools: bool = False
    """Whether the client's tools are passed to it."""
    verifiers: tuple[str, ...] = ()
    """Verifier names whose outcome is this slot's business; the evidence for blaming the router."""


class Profile(Record):
    """Prompts, slots and limits of one MoL harness version."""

    slots: tuple[Slot, ...]
    router: str = "L0"
    """Slot that routes."""
    route_prompt: str
    """Appended to the user's text; `{slots}` and `{labels}` are filled in."""
    route_prefill: str = ""
    summary_prompt: str
    handover_template: str
    """How another slot's past turns stand in a view; `{summaries}` is filled in."""
    max_answer_tokens: int = Field(default=96, gt=0)
    max_summary_tokens: int = Field(default=192, gt=0, le=192)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"slot names must differ, got {', '.join(self.labels)}")
        if self.router not in self.labels:
            raise ValueError(f"router {self.router!r} is none of {', '.join(self.labels)}")
        try:
            self.route_prompt.format(text="", slots="", labels="")
            self.handover_template.format(summaries="")
        except (LookupError, ValueError) as error:
            raise ValueError(
                f"route_prompt takes {{text}}, {{slots}} and {{labels}}, handover_template "
                f"{{summaries}}; a brace of the text is doubled ({error!r})"
            ) from error
        return self

    @property
    def digest(self) -> str:
        """Content hash of the whole profile."""
        return content_id(self.model_dump(mode="json"))

    @property
    def labels(self) -> tuple[str, ...]:
        """Slot names in order; the legal routes."""
        return tuple(s.name for s in self.slots)

    def slot(self, name: str) -> Slot:
        """Return the slot called `name`.

        Raises:
            UnknownSlot: if there is none.
        """
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise UnknownSlot(
            f"No slot {name!r}; the profile has {', '.join(self.labels)}. "
            "Choose one of them with '--slot'."
        )


DEFAULT_PROFILE = Path(__file__).with_name("profile.toml")


def load_profile(path: Path = DEFAULT_PROFILE) -> Profile:
    """Read a profile from a TOML file.

    Raises:
        ProfileInvalid: if the file cannot be read or a field is wrong.
    """
    try:
        return Profile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileInvalid(
            f"Cannot read the profile {str(path)!r}: {error}. "
            f"Name a TOML file like {DEFAULT_PROFILE.name}."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "as a whole"
        given = "" if isinstance(first["input"], dict) else f", got {first['input']!r:.80}"
        raise ProfileInvalid(
            f"Profile {str(path)!r}: {field}: {first['msg']}{given}. "
            f"Compare it with serving/{DEFAULT_PROFILE.name}."
        ) from error
