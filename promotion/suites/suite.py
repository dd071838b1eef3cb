"""What a suite is: named items for one slot, each a request with the check of its answer.

A suite is data plus a scorer. `promotion.suites.build` makes those of the task world,
`promotion.suites.files` reads others from files, and `promotion.suites.sets` divides any of
them into what may be seen, what the gate scores, and what only audits score.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from serving.engine import ChatRequest, Engine
from serving.errors import MolError
from serving.records import Message, content_id
from traces.verifiers.check import Check

log = logging.getLogger(__name__)

Kind = Literal["skill", "route", "handover", "safety", "format", "living"]
"""`skill`: what the slot is for. `route`: whether the router picks the right slot. `handover`:
summaries that other slots depend on. `safety`: a must-pass list. `format`: whether answers keep
the form asked for. `living`: conversations, scored on the state they leave behind."""


@dataclass(frozen=True, slots=True)
class Played:
    """What one item brought about: the model's messages in order, and their check."""

    answers: tuple[Message, ...]
    """One for a plain item; every message of the model in a conversation."""
    check: Check
    completion_tokens: int


Play = Callable[[Engine, str, float, int | None], Awaitable[Played]]
"""Holds a conversation with a served name at a temperature and with a seed, and scores it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request with the check of its answer, or the opening of a conversation."""

    item_id: str
    cluster: str
    """What it was made from (template, scenario); items of one cluster are not independent."""
    text: str
    """The user's text, for decontamination."""
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    choices: tuple[str, ...]
    max_tokens: int
    check: Callable[[Message], Check]
    play: Play | None = None
    """Where one answer is not enough: holds the whole conversation; `check` is not asked then."""
    further_texts: tuple[str, ...] = ()
    """What the user says later on, for decontamination."""

    @property
    def asked_id(self) -> str:
        """Digest of what is asked, however it is put to a model and whatever answers are right."""
        return content_id([self.text, *self.further_texts])

    async def run(
        self, engine: Engine, model: str, temperature: float = 0.0, seed: int | None = None
    ) -> Played:
        """Ask `model` and check what comes; a check runs in a thread, for it may take a while.

        One that crashes, or a conversation that does, says nothing of the answer; the log tells
        how, but not of which request.
        """
        if self.play is not None:
            try:
                return await self.play(engine, model, temperature, seed)
            except MolError:  # an engine that is gone or refuses is no crash
                raise
            except Exception as error:
                return Played((), _crashed("conversation", error), 0)
        result = await engine.chat(
            ChatRequest(
                model=model,
                messages=self.messages,
                tools=self.tools,
                max_tokens=self.max_tokens,
                temperature=temperature,
                seed=seed,
                choices=self.choices,
                continue_final=bool(self.choices),
                affinity=self.item_id,
            )
        )
        try:
            check = await asyncio.to_thread(self.check, result.message)
        except Exception as error:  # whatever an answer makes of somebody's code
            check = _crashed("check", error)
        return Played((result.message,), check, result.completion_tokens)


def _crashed(what: str, error: Exception) -> Check:
    log.warning("A %s crashed with %s; its item is not judged", what, type(error).__name__)
    return Check(None, f"the {what} crashed: {error!r}"[:160])


@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of items for one slot."""

    name: str
    slot: str
    items: tuple[Item, ...]
    kind: Kind = "skill"
    scorer: str = ""
    """Digest of code that scores and may change; "" where items' ids say all that decides."""

    @property
    def digest(self) -> str:
        """Content hash of all that decides a score and what it counts for, and of the order."""
        items = [[item.item_id, item.cluster] for item in self.items]
        return content_id([self.name, self.slot, self.kind, self.scorer, items])
