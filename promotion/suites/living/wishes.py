"""Scenarios in which the user wants something else midway: `TEMPLATES`.

A shape of wish is a table row that says what is asked in each turn, over deeds drawn for any
subject. What was done for the first wish must be undone where a later one says so, and a wish
taken back in time must leave no trace. Each shape comes plain, over a tool that fails, and beside
a second request that nothing is said of any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from promotion.suites.living.compose import Talk, Template, elsewhere, sentences, template
from promotion.suites.living.deeds import Deed, Relation


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of a shape; numbers are those of deeds."""

    key: str
    """Line of the subject."""
    about: tuple[int, ...]
    """Deeds whose values the line may say, in order."""
    undo: tuple[int, ...] = ()
    do: tuple[int, ...] = ()
    after: str = ""
    """Line for any subject that is added: to hold it, to go on."""
    instead: bool = False
    """A deed of another subject is asked for besides, in the same breath."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a wish changes."""

    name: str
    subjects: str
    relation: Relation
    deeds: int
    turns: tuple[Turn, ...]
    wanted: tuple[int, ...]
    """Deeds that hold in the end."""


_ASK, _TWO = Turn("ask", (0,), do=(0,)), Turn("ask2", (0, 1), do=(0, 1))
_PLAN, _PLAN_TWO = Turn("ask", (0,), after="hold"), Turn("ask2", (0, 1), after="hold")
_SETTLED = Turn("held", (0, 1), do=(1,), after="go")
_TARGETS, _VALUES = "light heating calendar", "heating timer list calendar music"
_MANY = "light heating timer list calendar"


def _other(name: str, key: str, subjects: str, relation: Relation) -> tuple[Shape, Shape]:
    """Another value or target, once and twice."""
    change = Turn(key, (0, 1), undo=(0,), do=(1,))
    again = Turn(key, (1, 2), undo=(1,), do=(2,))
    return (
        Shape(name, subjects, relation, 2, (_ASK, change), (1,)),
        Shape(f"{name}-twice", subjects, relation, 3, (_ASK, change, again), (2,)),
    )


def _planned(subjects: str, relation: Relation) -> tuple[Shape, Shape]:
    """A plan that changes before it may be carried out, once and twice."""
    turns = (_PLAN, Turn("held", (0, 1), after="wait"), Turn("held", (1, 2), do=(2,), after="go"))
    return (
        Shape("planned", subjects, relation, 2, (_PLAN, _SETTLED), (1,)),
        Shape("planned-twice", subjects, relation, 3, turns, (2,)),
    )


SHAPES: tuple[Shape, ...] = (
    *_other("value", "other_value", _VALUES, "value"),
    *_other("target", "other_target", _TARGETS, "target"),
    Shape("added", f"{_MANY} message", "both", 2, (_ASK, Turn("added", (0, 1), do=(1,))), (0, 1)),
    Shape("same", "light heating message", "target", 2,
          (_ASK, Turn("same_for", (0, 1), do=(1,))), (0, 1)),
    Shape("same", "calendar", "value", 2, (_ASK, Turn("same_for", (0, 1), do=(1,))), (0, 1)),
    Shape("one-of-two", _MANY, "both", 2, (_TWO, Turn("dropped", (0, 1), undo=(0,))), (1,)),
    Shape("last-undone", _MANY, "both", 3,
          (_ASK, Turn("added", (0, 1), do=(1,)), Turn("undo_last", (0, 1, 2), undo=(1,), do=(2,))),
          (0, 2)),
    Shape("swapped", "heating calendar", "swap", 4,
          (_TWO, Turn("swapped", (0, 1), undo=(0, 1), do=(2, 3))), (2, 3)),
    Shape("both", "light timer list", "both", 4,
          (_TWO, Turn("both", (0, 1, 2, 3), undo=(0, 1), do=(2, 3))), (2, 3)),
    Shape("both", "heating calendar", "pairs", 4,
          (_TWO, Turn("both", (0, 1, 2, 3), undo=(0, 1), do=(2, 3))), (2, 3)),
    Shape("taken-back", f"{_MANY} music", "both", 1,
          (_ASK, Turn("back", (0,), undo=(0,), instead=True)), ()),
    *_planned("heating timer list calendar music", "value"),
    *_planned("light message", "target"),
    Shape("planned-text", "message", "value", 2,
          (_PLAN, Turn("held_text", (0, 1), do=(1,), after="go")), (1,)),
    Shape("planned-swapped", "message", "swap", 4,
          (_PLAN_TWO, Turn("swapped", (0, 1), do=(2, 3), after="go")), (2, 3)),
    Shape("planned-two", f"{_MANY} message", "both", 2,
          (_PLAN_TWO, Turn("only", (0, 1), do=(1,), after="go")), (1,)),
    Shape("plan-dropped", f"{_MANY} message music", "both", 1,
          (_PLAN, Turn("", (), instead=True)), ()),
)  # fmt: skip


def _compose(
    shape: Shape, subject: str, other: str, talk: Talk, *, fails: bool = False, beside: bool = False
) -> None:
    deeds = talk.draw(subject, shape.relation, shape.deeds)
    second: list[Deed] = []
    if beside or any(turn.instead for turn in shape.turns):
        second = talk.draw(other, "both", 1)
    for number, turn in enumerate(shape.turns):
        here = [deeds[index] for index in turn.about]
        said = [talk.words(subject, turn.key, *here) if turn.key else talk.words("any", "drop")]
        if turn.after:
            said.append(talk.words("any", turn.after))
        done = [deeds[index] for index in turn.do]
        replaced = {deed.fact for deed in done}
        undone = [deeds[index] for index in turn.undo if deeds[index].fact not in replaced]
        if turn.instead or (beside and number == 0):
            said.insert(len(said) if turn.instead else 0, talk.words(other, "ask", *second))
            done += second
        talk.say(sentences(*said), *(d.undo for d in undone), *(d.do for d in done))
    wanted = [deeds[index] for index in shape.wanted] + second
    talk.want(*wanted)
    if fails:
        _fail(talk, wanted[-1] if not second else second[0], deeds)


def _fail(talk: Talk, last: Deed, deeds: list[Deed]) -> None:
    """Let what is wanted in the end fail at first."""
    others = [deed for deed in deeds if deed is not last]
    about = last.target if last.target not in {deed.target for deed in others} else last.value
    talk.spoil(last.subject.tool, talk.rng.choice(("none", "wait")), about=about)


def stopped(talk: Talk) -> None:
    """Play something, then want silence."""
    (deed,) = talk.draw("music", "both", 1)
    silence = replace(deed, before="none")
    talk.say(talk.words("music", "ask", deed), deed.do)
    talk.say(talk.words("music", "stopped"), silence.undo)
    talk.goal |= silence.undone


def _templates() -> Iterator[Template]:
    yield template("stopped", "music", "wish", stopped)
    for number, shape in enumerate(SHAPES):
        for subject in shape.subjects.split():
            made = partial(_compose, shape, subject, elsewhere(subject, number))
            yield template(shape.name, subject, "wish", made)
            if shape.name not in ("swapped", "planned-swapped"):
                yield template(shape.name, subject, "wish tool", partial(made, fails=True))
            if shape.turns[0] in (_ASK, _TWO) and shape.wanted:
                yield template(f"{shape.name}-beside", subject, "wish", partial(made, beside=True))


TEMPLATES: tuple[Template, ...] = tuple(_templates())
