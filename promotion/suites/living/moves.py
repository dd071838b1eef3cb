"""Scenarios in which somebody else changes the home: `TEMPLATES`.

Somebody does so between two turns, so that what the model read is no longer true; before the
first, so that what is asked for may be there already; or after the model has done it. Some have
another change besides.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from promotion.suites.living.compose import Talk, Template, elsewhere, sentences, template
from promotion.suites.living.deeds import SUBJECTS, Value, restored
from promotion.suites.living.readings import READINGS, Reading, read
from promotion.suites.living.scenario import Step

Seen = dict[tuple[Any, ...], dict[str, Any]]
"""What calls returned last, by tool and arguments."""


def stale(reading: str, talk: Talk, *, fails: bool = False) -> None:
    """Want something that depends on a fact that has changed since it was read."""
    made = _stale(reading, talk, {})
    talk.goal |= made.goal
    if fails:
        talk.spoil(made.tool, talk.rng.choice(("none", "wait")))


def unread(reading: str, talk: Talk) -> None:
    """Want something that somebody has made half so before."""
    made = read(talk, reading, moved=True)
    talk.say(talk.words(reading, "act", **made.fields), made.step, moves=made.moves)
    talk.goal |= made.goal


def undone(reading: str, other: str, talk: Talk) -> None:
    """Do what depends on a fact that has changed, then take it back and want something else."""
    seen: Seen = {}
    made = _stale(reading, talk, seen)
    ((fact, value),) = made.goal.items()
    (deed,) = talk.draw(other, "both", 1)

    def undo() -> Step:
        # An entry is there or not; what a setting was has been read just before it was changed.
        before: Value = 0 if value else 1
        if (made.reader, *fact[1:]) in seen:
            (before,) = seen[made.reader, *fact[1:]].values()
        return (yield from restored(fact, before, value))

    said = talk.words("any", "undo_that"), talk.words(other, "ask", deed)
    talk.say(sentences(*said), undo, deed.do)
    talk.want(deed)


def still(subject: str, talk: Talk, *, fails: bool = False) -> None:
    """Do one thing, which somebody undoes, and which should hold."""
    (deed,) = talk.draw(subject, "both", 1)
    talk.say(talk.words(subject, "ask", deed), deed.do)
    talk.say(talk.words(subject, "still", deed), deed.ensure, moves=deed.undone)
    talk.want(deed)
    if fails:
        talk.spoil(deed.subject.tool, spares=1)


def _stale(reading: str, talk: Talk, seen: Seen) -> Reading:
    made = read(talk, reading, moved=True)
    talk.say(talk.words(reading, "query", **made.fields), *made.looks)
    step = partial(_watched, made.step, seen)
    talk.say(talk.words(reading, "act", **made.fields), step, moves=made.moves)
    return made


def _watched(step: Callable[[], Step], seen: Seen) -> Step:
    """Do a step, and keep what each of its calls returned."""
    calls = step()
    try:
        call = next(calls)
        while True:
            name, arguments = call
            result = yield call
            seen[name, *arguments.values()] = result
            call = calls.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _templates() -> Iterator[Template]:
    for number, (name, row) in enumerate(READINGS.items()):
        label, subject = name.replace("_", "-"), row.subject
        yield template(label, subject, "state", partial(stale, name))
        yield template(label, subject, "state tool", partial(stale, name, fails=True))
        yield template(f"{label}-unread", subject, "state", partial(unread, name))
        if row.undoable:
            other = elsewhere(subject, number)
            yield template(label, subject, "state wish", partial(undone, name, other))
    for subject in SUBJECTS:
        if subject != "message":
            yield template("still", subject, "state", partial(still, subject))
            yield template("still", subject, "state tool", partial(still, subject, fails=True))


TEMPLATES: tuple[Template, ...] = tuple(_templates())
