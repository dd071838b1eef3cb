"""Scenarios in which a tool goes wrong: `TEMPLATES`.

A failure that changed nothing asks for another try, one of which nobody knows asks for a look,
an ok that the user does not believe too, a refusal for what the tool allows instead, a noisy
reading for another reading, a warning for nothing, and a broken device for what the user said
for that case.
"""

from collections.abc import Callable, Iterator
from functools import partial

from promotion.suites.living.compose import Talk, Template, elsewhere, sentences, template
from promotion.suites.living.deeds import SUBJECTS, Deed
from promotion.suites.living.home import Effect
from promotion.suites.living.readings import READINGS, read
from promotion.suites.living.scenario import Step


def again(subject: str, talk: Talk, *, effect: Effect, times: int) -> None:
    """Do one thing with a tool that fails at first; the user may have to say that it is not so."""
    (deed,) = talk.draw(subject, "both", 1)
    talk.say(talk.words(subject, "ask", deed), deed.do)
    talk.say(talk.words("any", "reminder"), unless=deed.done)
    talk.want(deed)
    talk.spoil(deed.subject.tool, effect, times=times)


def partly(subject: str, talk: Talk) -> None:
    """Do two things, of which one fails at first."""
    one, other = talk.draw(subject, "both", 2)
    failing = talk.rng.choice((one, other))
    talk.say(talk.words(subject, "ask2", one, other), one.do, other.do)
    talk.want(one, other)
    about = failing.target or failing.value
    talk.spoil(failing.subject.tool, about=about)


def partly_elsewhere(subject: str, other: str, talk: Talk) -> None:
    """Do two things of different subjects, of which the second fails at first."""
    (one,), (two,) = talk.draw(subject, "both", 1), talk.draw(other, "both", 1)
    asks = talk.words(subject, "ask", one), talk.words(other, "ask", two)
    talk.say(sentences(*asks), one.do, two.do)
    talk.want(one, two)
    talk.spoil(two.subject.tool)


def claimed(subject: str, talk: Talk) -> None:
    """Do one thing with a tool that says ok and does nothing, for a user who wants it checked."""
    (deed,) = talk.draw(subject, "both", 1)
    talk.say(_with(talk, subject, "check", deed), deed.do, deed.ensure)
    talk.want(deed)
    talk.spoil(deed.subject.tool, "claimed")


def unknown(subject: str, talk: Talk) -> None:
    """Do one thing once with a tool that leaves open whether it did it."""
    (deed,) = talk.draw(subject, "both", 1)
    talk.say(_with(talk, subject, "once", deed), _tried(deed, deed.ensure))
    talk.want(deed)
    # What was done and what was not look alike until one looks, so they are one template.
    effect: Effect = talk.rng.choice(("done", "none"))
    talk.spoil(deed.subject.tool, effect, says=talk.words("any", "unknown"))


def warned(subject: str, talk: Talk) -> None:
    """Do one thing once with a tool that does it and warns of something else."""
    (deed,) = talk.draw(subject, "both", 1)
    talk.say(_with(talk, subject, "once", deed), deed.do)
    talk.want(deed)
    talk.spoil(deed.subject.tool, "warned")


def refused(subject: str, talk: Talk) -> None:
    """Do what a tool allows instead of what it refuses."""
    wished, allowed = talk.draw(subject, "value", 2)
    talk.say(_with(talk, subject, "offer", wished), _tried(wished, allowed.do))
    talk.want(allowed)
    says = f"{wished.value} is not possible, nothing was changed; {allowed.value} is allowed"
    talk.spoil(wished.subject.tool, times=99, about=wished.value, says=says)


def broken(subject: str, talk: Talk) -> None:
    """Do what the user named for the case that the first thing cannot be done."""
    by_target = bool({"room", "person"} & {SUBJECTS[subject].target})
    one, other = talk.draw(subject, "target" if by_target else "value", 2)
    talk.say(talk.words(subject, "fallback", one, other), _tried(one, other.do))
    talk.want(other)
    about = one.target if by_target else one.value
    talk.spoil(one.subject.tool, times=99, about=about, says=talk.words("any", "broken"))


def noisy(reading: str, talk: Talk) -> None:
    """Do something that depends on a fact whose first reading is wrong."""
    made = read(talk, reading, moved=False)
    talk.say(talk.words(reading, "act", **made.fields), made.step)
    talk.goal |= made.goal
    talk.spoil(made.reader, "noise")


def _tried(deed: Deed, otherwise: Callable[[], Step]) -> Callable[[], Step]:
    """Try a deed once, and go on otherwise if that is an error."""

    def step() -> Step:
        result = yield deed.subject.tool, deed.arguments
        if "error" in result:
            result = yield from otherwise()
        return result

    return step


def _with(talk: Talk, subject: str, more: str, deed: Deed) -> str:
    return sentences(talk.words(subject, "ask", deed), talk.words("any", more))


_COUNTED = tuple(name for name, row in SUBJECTS.items() if row.counted)
_KINDS: tuple[tuple[str, Callable[[str, Talk], None], tuple[str, ...]], ...] = (
    ("fails", partial(again, effect="none", times=1), tuple(SUBJECTS)),
    ("fails-twice", partial(again, effect="none", times=2), tuple(SUBJECTS)),
    ("slow", partial(again, effect="wait", times=2), tuple(SUBJECTS)),
    ("partly", partly, tuple(name for name in SUBJECTS if name != "music")),
    ("claimed", claimed, tuple(SUBJECTS)),
    ("unknown", unknown, _COUNTED),
    ("warned", warned, _COUNTED),
    ("refused", refused, ("heating", "timer", "list", "calendar", "music")),
    ("broken", broken, tuple(SUBJECTS)),
)


def _templates() -> Iterator[Template]:
    for label, compose, subjects in _KINDS:
        for subject in subjects:
            yield template(label, subject, "tool", partial(compose, subject))
    for number, subject in enumerate(SUBJECTS):
        other = elsewhere(subject, number)
        yield template(
            f"partly-{other}", subject, "tool", partial(partly_elsewhere, subject, other)
        )
    for name, row in READINGS.items():
        yield template(f"{name}-noise", row.subject, "tool", partial(noisy, name))


TEMPLATES: tuple[Template, ...] = tuple(_templates())
