"""A run of several agents as its log shows it: who said what, what was executed, who coordinates.

In: a turn and its hops. Out: a `TeamRun`, its utterances in order. Roles are inferred from the
flow of messages, never from names: an executor answers with what a machine printed, a coordinator
opens the run and speaks again after nearly every word of the others, whom it calls by name.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from serving.records import Hop, Turn
from traces.joins.standing import standing

_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_EXIT = re.compile(r"\bexit\s*code:?\s*(-?\d+)", re.IGNORECASE)
_IDLE = re.compile(r"\bno code\b", re.IGNORECASE)
_TRACE = re.compile(r"\bTraceback \(most recent call last\)|\A\s*\w*(?:Error|Exception)\b")
_PRINTED = re.compile(r"\A.*?\boutput(?: was)?:[ \t]*", re.DOTALL | re.IGNORECASE)
_NOTHING = re.compile(
    r"\bnot? (?:\w+ ){0,4}found\b|\bno such\b|\bnot available\b|\bcould not\b|\berror\b",
    re.IGNORECASE,
)
_HOLLOW = frozenset({"", "0", "0.0", "[]", "{}", "()", "set()", "nan", "None", "null"})
_WORD = re.compile(r"[^\W_]+")
_STOP = re.compile(r"\b(?:terminate|end|stop|done)\b", re.IGNORECASE)
_HEAD_CHARS = 200
_MIN_WORDS = 3
"""What says less, such as a bare `TERMINATE`, decides nothing."""
_MACHINE_SHARE = 0.6
_COORDINATOR_SHARE = 0.4
_BACK_SHARE = 0.6
_NAMED_SHARE = 0.8
_TURNS, _PAIR = 3, 2


def words(text: str) -> list[str]:
    """Return a text's words and numbers, case folded."""
    return [word.casefold() for word in _WORD.findall(text)]


def failed(printed: str) -> bool:
    """Whether what an executor printed says that the execution failed."""
    code = _EXIT.search(printed)
    return (code is not None and code[1] != "0") or _TRACE.search(printed) is not None


def hollow(printed: str) -> bool:
    """Whether an execution that did not fail printed nothing of use."""
    body = _PRINTED.sub("", printed, count=1).strip()
    return (
        body in _HOLLOW
        or body.startswith("None")
        or body.endswith(":")
        or _NOTHING.search(body[: 2 * _HEAD_CHARS]) is not None
    )


def wrong(printed: str | None) -> bool:
    """Whether something was executed and failed or gave nothing."""
    return printed is not None and (failed(printed) or hollow(printed))


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one agent said in one engine call."""

    place: int
    """Index of its hop among the answer hops that stand."""
    speaker: str
    text: str
    code: str
    """The code blocks and tool arguments in it."""
    printed: str | None = None
    """What executing it printed, where it was executed."""
    follows: str | None = None
    """What an executor said right before it."""

    @property
    def said_words(self) -> int:
        """Number of words."""
        return len(words(self.text))

    @property
    def went_wrong(self) -> bool:
        """Whether it was executed and failed or gave nothing."""
        return wrong(self.printed)


@dataclass(frozen=True)
class TeamRun:
    """The log of one run, of which `steps` are those that an agent can be blamed for."""

    request: str
    said: tuple[Utterance, ...]
    executors: frozenset[str]

    @cached_property
    def steps(self) -> tuple[Utterance, ...]:
        """What agents said of their own, without executors' output and bare farewells."""
        return tuple(
            u
            for u in self.said
            if u.speaker not in self.executors
            and len(words(_STOP.sub("", u.text))) + 2 * bool(u.code) >= _MIN_WORDS
        )

    @cached_property
    def coordinator(self) -> str | None:
        """Who opens the run, speaks again after each of the others and hands the work to them.

        It hands over where it names who speaks next; where it names nobody, by taking turns
        with several others throughout and writing no code.
        """
        own = [u for u in self.said if u.speaker not in self.executors]
        first = own[0].speaker if own else None
        its = [u for u in own if u.speaker == first]
        if len(its) < _COORDINATOR_SHARE * len(own) or len(its) == len(own):
            return None
        back = [b.speaker == first for a, b in pairwise(own) if a.speaker != first]
        named = _names_next(own, first)
        if named and sum(named) >= _NAMED_SHARE * len(named):
            return first if sum(back) >= _BACK_SHARE * len(back) else None
        several = len({u.speaker for u in own}) > _PAIR
        alternates = several and len(back) >= _TURNS and all(back)
        return first if alternates and not any(u.code for u in its) else None

    def outcome_of(self, step: Utterance) -> str | None:
        """Return what executing a step's code printed, if only after the coordinator asked for it.

        None where nothing was executed before somebody wrote other code.
        """
        if step.printed is not None or not step.code:
            return step.printed
        for later in self.said[step.place + 1 :]:
            if later.speaker in self.executors and not idle(later.text):
                return later.text
            if later.code and later.speaker not in (self.coordinator, *self.executors):
                return None
        return None


def _names_next(own: Sequence[Utterance], first: str | None) -> list[bool]:
    """Return, for each time that another speaks after the first one, whether it named that one."""
    named, said = [], ""
    for before, after in pairwise(own):
        if before.speaker != first:
            continue
        said += before.text
        if after.speaker != first:
            named.append(after.speaker in said)
            said = ""
    return named


def answers_of(hops: Sequence[Hop]) -> list[Hop]:
    """Return the hops that an agent's words are: answers that no later attempt replaces."""
    return [hop for hop in standing(hops) if hop.role == "answer"]


def read_run(turn: Turn, hops: Sequence[Hop]) -> TeamRun:
    """Return the run that a turn's answer hops are."""
    answers = answers_of(hops)
    results = {
        message.tool_call_id: message.content
        for messages in [*(hop.messages for hop in answers), turn.tail]
        for message in messages
        if message.role == "tool" and message.tool_call_id
    }
    said = [_utterance(place, hop, results) for place, hop in enumerate(answers)]
    executors = _executors(said)
    return TeamRun(turn.request, tuple(_linked(said, executors)), executors)


def _utterance(place: int, hop: Hop, results: Mapping[str, str]) -> Utterance:
    """Return what a hop said; a tool's result is what its call printed."""
    message = hop.completion
    if message is None:
        return Utterance(place, hop.slot, "", "")
    arguments = [call.arguments for call in message.tool_calls]
    code = "\n".join([*_FENCED.findall(message.content), *arguments])
    printed = [results[call.id] for call in message.tool_calls if call.id in results]
    return Utterance(
        place=place,
        speaker=hop.slot,
        text="\n".join([message.content, *arguments]).strip(),
        code=code.strip(),
        printed="\n".join(printed) if printed else None,
    )


def _executors(said: Sequence[Utterance]) -> frozenset[str]:
    """Return the speakers most of whose words are a machine's; who opens the run is none."""
    spoken = Counter(u.speaker for u in said)
    machine = Counter(u.speaker for u in said if printed_by_machine(u.text))
    opener = said[0].speaker if said else None
    return frozenset(
        name
        for name, count in spoken.items()
        if name != opener and machine[name] >= _MACHINE_SHARE * count
    )


def printed_by_machine(text: str) -> bool:
    """Whether a text begins as an executor's does."""
    head = text[:_HEAD_CHARS]
    return any(pattern.search(head) for pattern in (_EXIT, _IDLE, _TRACE))


def idle(text: str) -> bool:
    """Whether an executor said that it had nothing to execute."""
    head = text[:_HEAD_CHARS]
    return _IDLE.search(head) is not None and _EXIT.search(head) is None


def _linked(said: Sequence[Utterance], executors: frozenset[str]) -> Iterator[Utterance]:
    """Yield the utterances, each with what executors said right before and right after it."""
    for place, utterance in enumerate(said):
        before = said[place - 1] if place else None
        after = said[place + 1] if place + 1 < len(said) else None
        printed, follows = utterance.printed, before.printed if before else None
        if utterance.speaker not in executors and after and after.speaker in executors:
            printed = printed or (None if idle(after.text) else after.text)
        if before and before.speaker in executors:
            follows = before.text
        yield replace(utterance, printed=printed, follows=follows)
