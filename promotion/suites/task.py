"""A task of the task world: one request, its right answer, and the check of any answer.

Every domain module (`household`, `functions`, `interface`, `chat`) fills the phrasings of its
file in `data/phrasings`. They are split three ways, so that none crosses over: `seed` (what the
first adapters learned from), `traffic` (what simulated users ask) and `gate` (what evaluation
asks, and alone does of most topics).
"""

import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from serving.records import Message
from traces.verifiers.check import Check
from traces.verifiers.registry import checker

Partition = Literal["seed", "traffic", "gate"]


@dataclass(frozen=True, slots=True)
class Task:
    """One verifiable request."""

    slot: str
    """Slot whose skill it asks for."""
    template: str
    """Phrasing it was made from; evaluation clusters by it."""
    text: str
    answer: Message
    """The right answer, as an adapter should write it."""
    reference: Mapping[str, Any]
    """What any answer is checked against, as `traces.verifiers.registry` reads it."""
    keywords: tuple[str, ...]
    """What a summary of the finished turn must keep for other slots."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Those it may be solved with, in OpenAI form."""

    @property
    def verifier(self) -> str:
        """Name of the verifier that checks answers."""
        return str(self.reference["verifier"])

    def check(self, answer: Message) -> Check:
        """Check any answer."""
        check = checker(self.reference, self.tools)
        assert check is not None, self.reference
        return check(answer)


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Templates of one request, by partition; `{name}` fields are filled with values."""

    gate: tuple[str, ...]
    seed: tuple[str, ...] = ()
    traffic: tuple[str, ...] = ()
    """Both are empty where only evaluation asks for it."""

    def pick(
        self, rng: random.Random, partition: Partition, values: Mapping[str, object]
    ) -> tuple[str, str]:
        """Return (template id, filled text) of one random phrasing."""
        choices: Sequence[str] = getattr(self, partition)
        index = rng.randrange(len(choices))
        return f"{partition}{index}", choices[index].format(**values)


_PHRASINGS = Path(__file__).with_name("data") / "phrasings"


def read_phrasings(domain: str) -> Mapping[str, Phrasings]:
    """Return the phrasings of a domain by what is asked for, as its file in `data` holds them."""
    tables = tomllib.loads((_PHRASINGS / f"{domain}.toml").read_text(encoding="utf-8"))
    return {
        name: Phrasings(**{partition: tuple(texts) for partition, texts in table.items()})
        for name, table in tables.items()
    }


TaskMaker = Callable[[random.Random, Partition], Task]


def assistant(text: str) -> Message:
    """Return an assistant message of plain text."""
    return Message(role="assistant", content=text)


def tool(name: str, description: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI form; all properties are required."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: dict(value) for key, value in properties.items()},
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }
