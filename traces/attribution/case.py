"""One failed turn, laid out for the rules that say whose fault it was.

In: the turn, its hops, its outcome, its neighbours in the conversation. Out: `Case`, whose
properties are worked out once and when asked for; a rule answers with a `Claim`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from serving.records import Feedback, Hop, Message, ToolCall, Turn
from serving.slots import Profile
from traces.attribution.form_checks import tools_in
from traces.attribution.literals import folded
from traces.attribution.outcomes import Outcome, verdicts, verifier_failed, verifier_passed
from traces.attribution.right_answer import FORM_OF_VERIFIER, Form, RightAnswer, right_answer
from traces.attribution.tool_results import Elsewhere, Shapes
from traces.verifiers.tool_call import call_problem, check_tool_call

Klass = Literal["router", "adapter", "summary", "tool", "fallback", "user", "unknown"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rule says of a case."""

    klass: Klass
    evidence: str
    slot: str | None = None
    right_slot: str | None = None
    hop: str | None = None
    """Id of the decisive engine call."""
    factor: float = 1.0
    """How sure this case of the rule is, relative to the rule's confidence."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A tool call and what came back."""

    call: ToolCall
    made: Hop
    """The engine call that wrote it."""
    result: str
    seen: Hop | None
    """The first engine call that saw the result; None where it ended the turn."""


@dataclass(frozen=True)
class Case:
    """What is known of one failed turn."""

    turn: Turn
    hops: tuple[Hop, ...]
    """Those that stand."""
    missing: int
    """Hops of the turn that the lake does not have."""
    outcome: Outcome
    signals: tuple[Feedback, ...]
    earlier: Sequence[Turn]
    later: Sequence[tuple[Turn, Outcome]]
    summaries: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of earlier turns: the id of the summary hop and what it said."""
    elsewhere: Mapping[str, Sequence[Elsewhere]] = field(default_factory=dict)
    """Of calls of this turn by id: what equal calls of other turns gave."""
    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    """Of tools by name: how their results look where turns went well."""
    profile: Profile = field(kw_only=True)
    ids: Mapping[int, str] = field(default_factory=dict, kw_only=True)
    """Ids of the hops by their place in memory, where the turn names them all."""

    @cached_property
    def answers(self) -> tuple[Hop, ...]:
        """The answer hops, in order."""
        return tuple(h for h in self.hops if h.role == "answer")

    @cached_property
    def route(self) -> Hop | None:
        """The route hop that counts."""
        return next((h for h in reversed(self.hops) if h.role == "route"), None)

    @cached_property
    def answer(self) -> Message | None:
        """What the first answer hop wrote: a later one follows a tool result."""
        return next((h.completion for h in self.answers if h.completion is not None), None)

    @cached_property
    def final(self) -> Message | None:
        """What the last answer hop wrote."""
        return next((h.completion for h in reversed(self.answers) if h.completion), None)

    @cached_property
    def right(self) -> RightAnswer | None:
        """The right answer, where anyone said what it is."""
        return right_answer(self.outcome.correction, self.signals)

    @cached_property
    def given(self) -> str:
        """Folded: all that the answering slot was given before its first answer."""
        return folded("\n".join(text_of(m) for m in self.answers[0].messages))

    @cached_property
    def seen(self) -> str:
        """Folded: all that it saw up to its last answer, tool results as well."""
        return folded("\n".join(text_of(m) for m in self.answers[-1].messages))

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the first answer hop was offered; none where the log does not say."""
        return tools_in(self.answers[0].tools)

    @cached_property
    def failed(self) -> list[str]:
        """Names of the verifiers that count and failed the turn."""
        return sorted({f.name for f in verdicts(self.signals) if verifier_failed(f)})

    @cached_property
    def passed(self) -> list[str]:
        """Names of those that passed it."""
        return sorted({f.name for f in verdicts(self.signals) if verifier_passed(f)})

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The tool calls of this turn that were answered, in order.

        Where ids of calls repeat, nobody can tell which result is whose: those are left out.
        """
        calls = [(c, hop) for hop in self.answers if hop.completion
                 for c in hop.completion.tool_calls]  # fmt: skip
        if not calls:
            return ()
        often = Counter(call.id for call, _ in calls)
        made = {c.id: (c, hop) for c, hop in calls if often[c.id] == 1}
        for repeated in self._answered_twice:
            made.pop(repeated, None)
        found: dict[str, Exchange] = {}
        seen = [(message, hop) for hop in self.hops for message in hop.messages]
        for message, hop in [*seen, *((message, None) for message in self.turn.tail)]:
            key = message.tool_call_id if message.role == "tool" else None
            if key is not None and key in made and key not in found:
                seer = hop if hop is not None and hop.role == "answer" else None
                found[key] = Exchange(*made[key], message.content, seer)
        return tuple(found.values())

    @cached_property
    def right_calls(self) -> tuple[Exchange, ...]:
        """The answered calls that their tool had to take and that nobody says are wrong."""
        if self.right is not None and self.right.call is not None and self.call_fault is not None:
            return ()
        return tuple(each for each in self.exchanges if not _wrong(each))

    @property
    def _answered_twice(self) -> set[str]:
        """Ids of calls of which some view has results that differ."""
        views = [hop.messages for hop in self.answers]
        views += [(*view, *self.turn.tail) for view in views[-1:]]
        told = ({(m.tool_call_id, m.content) for m in view if m.role == "tool"} for view in views)
        often = [Counter(str(key) for key, _ in results) for results in told]
        return {key for counts in often for key, count in counts.items() if count > 1}

    @cached_property
    def call_fault(self) -> str | None:
        """What is wrong with the first tool call of the turn, None where nothing is known to be."""
        if self.answer is None or not self.answer.tool_calls:
            return None
        if self.right is not None and self.right.call is not None:
            name, arguments = self.right.call
            check = check_tool_call(self.answer, name, arguments, _usable(self.tools, name))
            return None if check.passed else check.detail
        problems = (call_problem(call, self.tools) for call in self.answer.tool_calls)
        return next((p for p in problems if p), None) if self.tools else None

    @property
    def called_as_expected(self) -> bool:
        """Whether the right answer is a tool call and this turn made it."""
        called = self.answer is not None and bool(self.answer.tool_calls)
        known = self.right is not None and self.right.call is not None
        return called and known and self.call_fault is None

    def owners(self, verifier: str) -> list[str]:
        """Return the slots whose business a verifier is."""
        return [slot.name for slot in self.profile.slots if verifier in slot.verifiers]

    def forms(self, slot: str | None) -> set[Form]:
        """Return what a slot's answers look like, by its verifiers; none where that is open."""
        owned = [s.verifiers for s in self.profile.slots if s.name == slot]
        return {FORM_OF_VERIFIER[v] for each in owned for v in each if v in FORM_OF_VERIFIER}

    def id_of(self, hop: Hop) -> str:
        """Return a hop's id: the turn knows it, and to work it out anew takes long."""
        return self.ids.get(id(hop)) or hop.hop_id

    def abstain(self, reason: str) -> Claim:
        """Say that nothing can be said, and why."""
        return Claim("unknown", reason)


def text_of(message: Message) -> str:
    """Return a message's text with the arguments of its calls."""
    if not message.tool_calls:
        return message.content
    return "\n".join([message.content, *(call.arguments for call in message.tool_calls)])


def _wrong(each: Exchange) -> bool:
    tools = tools_in(each.made.tools)
    return bool(tools) and call_problem(each.call, tools) is not None


def _usable(tools: Sequence[Mapping[str, Any]], name: str) -> Sequence[Mapping[str, Any]]:
    """Stand in for tools that the log does not tell: any arguments will do."""
    return tools or [{"function": {"name": name}}]
