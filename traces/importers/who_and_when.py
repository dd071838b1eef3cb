"""Importer of Who&When: failed runs of several agents, with the culprit's step labelled.

Both published forms: algorithm-generated, `history: [{role, name, content}]`, and hand-crafted,
where the speaker stands in `role` alone, as `WebSurfer`, `Orchestrator (thought)` or
`Orchestrator (-> WebSurfer)`. A run is one turn; every entry of the history but a human's is a
hop of the agent that spoke, so that a hop's `seq` is the step that `mistake_step` counts. An
agent saw its own entries as the assistant's and everyone else's as the user's. Source: Zhang et
al., "Which Agent Causes Task Failures and When?", ICML 2025, and its data.
"""

import re
from collections.abc import Iterator
from typing import Any

from serving.records import Feedback, Message, canonical_json, content_id
from traces.importers.parts import plain_text
from traces.importers.rows import LineRefused, Row, feedback_row, refused
from traces.importers.trajectory import Call, Exchange, Trajectory, objects, rows

NAME = "who-and-when"

_LABEL = ("mistake_agent", "mistake_step", "mistake_reason")
_ASIDE = re.compile(r"\s*\([^()]*\)\s*\Z")
"""What follows a speaker's name in hand-crafted runs: `(thought)`, `(-> WebSurfer)`."""
_HUMAN = "human"


def recognises(value: Any) -> bool:
    """Return whether an item is a run: it has a history and a label or a question."""
    if not isinstance(value, dict) or not isinstance(value.get("history"), list):
        return False
    return any(name in value for name in (*_LABEL, "question_ID")) and "question" in value


def parse(value: Any) -> Iterator[Row]:
    """Yield the hops, the turn and the label of one run.

    Raises:
        LineRefused: if it is none.
    """
    if not isinstance(value, dict) or "history" not in value:
        raise LineRefused("unknown_kind", "no run of Who&When: it has no history")
    said = [_entry(raw) for raw in objects(value["history"], "history")]
    question = value.get("question")
    opening = [Message(role="user", content=question)] if isinstance(question, str) else []
    if said and said[0][0] is None:
        opening = []  # The human's entry asks the question.
    request = opening[0].content if opening else said[0][1] if said else ""
    prompts = value.get("system_prompt")
    task = value.get("question_ID")
    trajectory = Trajectory(
        source=NAME,
        conversation_id=content_id([task, value["history"]]),
        messages=[Message(role="user", content=text) for _, text in said],
        exchanges=[Exchange(0, request, _calls(said, opening, prompts))],
        task=f"{NAME}:{task}" if task else None,
    )
    yield from rows(trajectory)
    try:
        label = _label(value)
    except LineRefused as refusal:
        yield refused(refusal.reason, str(refusal), value)
        return
    if label:
        yield _verdict(trajectory, label)


def _entry(raw: dict[str, Any]) -> tuple[str | None, str]:
    """Return who spoke, None for the human who asked, and the text."""
    name, role = raw.get("name"), raw.get("role")
    if not isinstance(name, str) or not name:
        if not isinstance(role, str) or not role:
            raise LineRefused("bad_record", "an entry of the history names no speaker")
        name = _ASIDE.sub("", role)
    return None if name == _HUMAN else name, plain_text(raw.get("content"))


def _calls(said: list[tuple[str | None, str]], opening: list[Message], prompts: Any) -> list[Call]:
    calls = []
    for place, (name, text) in enumerate(said):
        if name is None:
            continue
        seen = [
            Message(role="assistant" if other == name else "user", content=earlier)
            for other, earlier in said[:place]
        ]
        prompt = prompts.get(name) if isinstance(prompts, dict) else None
        system = [Message(role="system", content=prompt)] if isinstance(prompt, str) else []
        answer = Message(role="assistant", content=text)
        calls.append(Call(place, answer, {"model": name}, [*system, *opening, *seen]))
    return calls


def _label(value: dict[str, Any]) -> dict[str, Any]:
    """Return the label, its step as a number; empty where nobody labelled the run."""
    label = {name: value[name] for name in _LABEL if value.get(name) is not None}
    step = label.get("mistake_step")
    if step is None:
        return label
    text = str(step).strip()
    if isinstance(step, bool) or not text.isdecimal() or int(text) >= len(value["history"]):
        raise LineRefused("bad_label", f"mistake_step {step!r} is no step of the history")
    return {**label, "mistake_step": int(text)}


def _verdict(trajectory: Trajectory, label: dict[str, Any]) -> Row:
    feedback = Feedback(
        source=NAME,
        target_kind="conversation",
        target_id=trajectory.conversation_id,
        kind="verifier",
        name="who_and_when",
        value=0.0,
        detail=canonical_json(label),
        created_at=trajectory.at(len(trajectory.messages)),
        annotator="human",
    )
    return feedback_row(feedback)
