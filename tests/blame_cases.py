"""The table of blame: for every rule at least one failed turn and what has to be said of it.

Shared by the table's own test and by the one that breaks rules to see that the table notices.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trace_records import PROFILE, at, calls, hop, result, says, signal, turn_of, user

from serving.records import Feedback, Hop, Turn, canonical_json
from traces.attribution.blame import Blame, Context, blame
from traces.attribution.outcomes import settle
from traces.attribution.structure import RULES, Rule
from traces.attribution.tool_results import Elsewhere

FOURTEEN = {"call-1": [Elsewhere('{"lamps": 14}', later_s, False) for later_s in (-60.0, 90.0)]}
ROUTE = hop("route", "L0", completion=says("L2"))
LIGHT = (
    '[{"type": "function", "function": {"name": "light", "parameters": {"type": "object",'
    ' "properties": {"room": {"type": "string"}}, "required": ["room"]}}}]'
)
ROOMS = LIGHT.replace('"string"', '"string", "enum": ["kitchen", "attic"]')
FAILED = signal(value=0.0)
SHOWN = signal(value=0.0, name="call_schema", source="derived", annotator="code")
CALL_FAILED = signal(value=0.0, name="tool_call")


@dataclass(frozen=True)
class BlameCase:
    """A failed turn and the verdict: label, right slot, rule, and index of the decisive hop."""

    name: str
    expected: tuple[str, str | None, str, int | None]
    feedback: tuple[Feedback, ...] = ()
    hops: tuple[Hop, ...] = (ROUTE, hop())
    fields: dict[str, Any] = field(default_factory=dict)
    earlier: tuple[Turn, ...] = ()
    later: Callable[[], tuple[Turn, float]] | None = None
    summaries: dict[str, tuple[str, str]] = field(default_factory=dict)
    elsewhere: dict[str, list[Elsewhere]] = field(default_factory=dict)
    shapes: dict[str, dict[str, int]] = field(default_factory=dict)

    def judge(self, rules: tuple[tuple[str, Rule], ...] = RULES) -> Blame | None:
        """Return the verdict of some rules on this turn."""
        turn = turn_of(self.hops, **self.fields)
        later = ()
        if self.later is not None:
            again, value = self.later()
            later = ((again, settle(again, [signal(value=value, name="tool_call")])),)
        context = Context(self.earlier, later, self.summaries, self.elsewhere, self.shapes)
        return blame(turn, self.hops, settle(turn, self.feedback), context, PROFILE, rules)

    def found(self, rules: tuple[tuple[str, Rule], ...] = RULES) -> Any:
        """Return what the rules say, to be compared with `expected`."""
        verdict = self.judge(rules)
        if verdict is None:
            return None
        ids = [h.hop_id for h in self.hops]
        place = ids.index(verdict.hop_id) if verdict.hop_id in ids else None
        return verdict.label, verdict.right_slot, verdict.rule, place


def checked(name: str, reference: dict[str, Any], value: float = 0.0) -> Feedback:
    return signal(name=name, value=value, reference=canonical_json(reference))


def light(room: str) -> Feedback:
    """L1's verifier: the right answer would have been `light(room)`."""
    return checked(
        "tool_call", {"verifier": "tool_call", "name": "light", "arguments": {"room": room}}
    )


def short(accepted: str, name: str = "spoken") -> Feedback:
    return checked(name, {"verifier": "short_answer", "accepted": [accepted], "max_words": 24})


def home(text: str, *messages: Any, answer: Any, **fields: Any) -> Hop:
    """L1 is asked something."""
    values = {"messages": (user(text), *messages), "completion": answer, "tools": LIGHT}
    return hop(slot="L1", **values | fields)


def spoken(content: str, answer: str, before: tuple[Any, ...] = ()) -> tuple[Hop, ...]:
    """L1 calls its tool, gets `content` and says something."""
    call = calls("light", room="kitchen")
    text = "Light in the kitchen, and how many lamps?"
    first = hop(
        slot="L1",
        messages=(*before, user(text)),
        completion=call,
        tools=LIGHT,
        finish_reason="stop",
    )
    seen = (*before, user(text), call, result(content))
    then = home(text, answer=says(answer), started_at=at(1.5), seq=2)
    return ROUTE, first, then.model_copy(update={"messages": seen})


def told(slot: str, request: str, answer: str) -> Turn:
    """An earlier turn of the same conversation."""
    said = hop(slot=slot, turn_id="t0", completion=says(answer))
    return turn_of([said], turn_id="t0", request=request)


def asked_again() -> tuple[Turn, float]:
    return turn_of([hop(slot="L1")], turn_id="t2", request="sort  a LIST!", position=1), 1.0


THUMB = signal("thumb", -1.0, user="u1")
CODE = 'print("Biscuit")'
CAT = told("L0", "What is my cat called?", "Your cat is called Biscuit.")
SENT = home("Light where I said.", answer=calls("light", room="attic"))
KITCHEN = "Light in the kitchen."
ASKED = spoken('{"lamps": 14}', "")
RAMBLING = " ".join(f"and {n} more words" for n in range(60))

CASES: tuple[BlameCase, ...] = (
    BlameCase(
        "the request was refused", ("user", None, "refused", None), (), (),
        {"status": "failed", "error": "request refused: 404 no such model"},
    ),
    BlameCase(
        "the client left", ("unknown", None, "abandoned", None), (FAILED,),
        (ROUTE, hop(status="broken_stream")), {"status": "abandoned"},
    ),
    BlameCase(
        "the engine failed", ("fallback", None, "engine_failed", 1), (),
        (ROUTE, hop(status="engine_error", completion=None, error="404 gone")),
        {"status": "failed"},
    ),
    BlameCase(
        "only the summary's call failed", ("adapter:L2", None, "own_verifier", 1), (FAILED,),
        (ROUTE, hop(), hop("summary", status="engine_error", completion=None)),
    ),
    BlameCase(
        "the pool chose the slot", ("fallback", None, "fallback_slot", 1), (CALL_FAILED,),
        fields={"decision": "fallback"},
    ),
    BlameCase(
        "the base model answered", ("fallback", None, "base_answered", 1), (FAILED,),
        (ROUTE, hop(slot="base", model="base", served_name="base")), {"decision": "unsure"},
    ),
    BlameCase(
        "no answer and no reason", ("fallback", None, "not_answered", None), (),
        fields={"status": "failed", "error": None},
    ),
    BlameCase(
        "a hop is missing", ("unknown", None, "inconsistent", None), (FAILED,), (ROUTE, hop()),
        {"hop_ids": ("sha256:0", "sha256:1", "sha256:2")},
    ),
    BlameCase(
        "clocks run backwards", ("unknown", None, "inconsistent", None), (FAILED,),
        (ROUTE, hop(started_at=at(-9))),
    ),
    BlameCase(
        "two answers", ("unknown", None, "inconsistent", None), (FAILED,),
        (ROUTE, hop(), hop(slot="L3", seq=2, started_at=at(2))),
    ),
    BlameCase(
        "a verifier that both passed and failed", ("unknown", None, "contradicted", None),
        (FAILED, signal(value=1.0)),
    ),
    BlameCase(
        "verifiers of two slots", ("unknown", None, "contradicted", None), (FAILED, CALL_FAILED)
    ),
    BlameCase(
        "only others disliked it", ("unknown", None, "strangers", None),
        (signal("thumb", -1.0, user="u7"), signal("thumb", -1.0, user="u8")),
    ),
    BlameCase(
        "another slot's verifier", ("router:L0", "L1", "foreign_verifier", 0), (CALL_FAILED,)
    ),
    BlameCase(
        "another slot's verifier, and a rule chose", ("router", "L1", "foreign_verifier", None),
        (CALL_FAILED,), fields={"decision": "rule"},
    ),
    BlameCase(
        "another slot's verifier, and a draw chose", ("fallback", "L1", "foreign_verifier", None),
        (CALL_FAILED,), fields={"decision": "explored"},
    ),
    BlameCase(
        "another slot's verifier, and the client chose", ("user", "L1", "foreign_verifier", None),
        (CALL_FAILED,), fields={"decision": "direct"},
    ),
    BlameCase(
        "another slot's verifier, and a pending call chose",
        ("unknown", None, "foreign_verifier", None), (CALL_FAILED,), fields={"decision": "sticky"},
    ),
    BlameCase(
        "the edit calls a tool", ("router:L0", "L1", "tools_not_offered", 0),
        (signal("edit", None, correction=calls("light", room="kitchen")),),
    ),
    BlameCase(
        "the edit is code, and a slot without verifiers of code answered",
        ("router:L0", "L2", "foreign_form", 0), (signal("edit", None, correction=says(CODE)),),
        (ROUTE, hop(slot="L0", completion=says("A biscuit."))),
    ),
    BlameCase(
        "the edit is in words, and the code slot answered",
        ("router:L0", "L0", "foreign_text", 0), (signal("edit", None, correction=says("Oslo.")),),
        (ROUTE, hop(messages=(user("Which city is the capital of Norway?"),))),
        {"request": "Which city is the capital of Norway?"},
    ),
    BlameCase(
        "the same request went well elsewhere", ("router:L0", "L1", "retried_elsewhere", 0),
        (THUMB,), later=asked_again,
    ),
    BlameCase(
        "the tool reports an error", ("tool", None, "tool_reported", 2), (short("4 lamps"),),
        spoken('{"error": "no such room"}', "I could not."),
    ),
    BlameCase(
        "the tool's result is cut", ("tool", None, "tool_damaged", 2), (short("4 lamps"),),
        spoken('{"ok": true, "lam', "Done."),
    ),
    BlameCase(
        "the tool's result is empty", ("tool", None, "tool_damaged", 2), (short("4 lamps"),),
        spoken("", "Done."),
    ),
    BlameCase(
        "the result is about another room", ("tool", None, "tool_mismatched", 2), (short("14"),),
        spoken('{"room": "attic", "lamps": 3}', "Those were some lamps."),
    ),
    BlameCase(
        "an equal call gave the right answer before", ("tool", None, "tool_contradicted", 2),
        (short("14"),),
        spoken('{"lamps": 77}', "Those were some.", (
            user("Light in the kitchen."), calls("light", "old", room="kitchen"),
            result('{"lamps": 14}', "old"),
        )),
    ),
    BlameCase(
        "equal calls of others agree on the right answer", ("tool", None, "tool_disputed", 2),
        (short("14"),), spoken('{"lamps": 77}', "Those were some."), elsewhere=FOURTEEN,
    ),
    BlameCase(
        "they were a day ago", ("tool", None, "tool_lacking", 2), (short("14"),),
        spoken('{"lamps": 77}', "Those were some."),
        elsewhere={"call-1": [x._replace(later_s=-9e4) for x in FOURTEEN["call-1"]]},
    ),
    BlameCase(
        "the result is text and others are not", ("tool", None, "tool_unlike", 2),
        (short("14"),), spoken("no lamps 14 today", "Those were some."),
        shapes={"light": {"object": 40}},
    ),
    BlameCase(
        "the answer repeats a wrong result", ("tool", None, "tool_untrue", 2), (short("14"),),
        spoken('{"lamps": 77}', "Those were 77 lamps."),
    ),
    BlameCase(
        "the right answer is nowhere in the result", ("tool", None, "tool_lacking", 2),
        (short("14"),), spoken('{"lamps": 77}', "Those were some lamps."),
    ),
    BlameCase(
        "the right answer may be worked out", ("adapter:L1", None, "other_verifier", 1),
        (short("14"),), spoken('{"old": 4, "new": 8, "dim": 2}', "Those were some lamps."),
    ),
    BlameCase(
        "the answer misreads a right result", ("adapter:L1", None, "other_verifier", 1),
        (short("14"),), spoken('{"lamps": 14}', "Those were 77 lamps."),
    ),
    BlameCase(
        "the right call was made and nothing came of it", ("tool", None, "call_undone", 1),
        (light("kitchen"),),
        (ROUTE, home(KITCHEN, answer=calls("light", room="kitchen"))),
        {"request": KITCHEN, "tail": (result('{"ok": true}'),)},
    ),
    BlameCase(
        "a wrong call and then an error", ("adapter:L1", None, "altered", 1), (light("kitchen"),),
        (ROUTE, home(KITCHEN, answer=calls("light", room="attic"))),
        {"request": KITCHEN, "tail": (result('{"error": "no such room"}'),)},
    ),
    BlameCase(
        "a name that the summary lost", ("summary:L0", None, "summary_lost", None),
        (signal("edit", None, correction=says(CODE)),),
        (ROUTE, hop(messages=(user("(They spoke of a cat.) Print its name."),))),
        {"request": "Print its name."}, (CAT,),
    ),
    BlameCase(
        "a name that was handed over", ("adapter:L2", None, "edited", 1),
        (signal("edit", None, correction=says(CODE)),),
        (ROUTE, hop(messages=(user("(The cat is Biscuit.) Print its name."),))),
        {"request": "Print its name."}, (CAT,),
    ),
    BlameCase(
        "a name in ideographs that the summary lost", ("summary:L0", None, "summary_lost", None),
        (light("厨房"),), (ROUTE, home("打开那里的灯。", answer=calls("light", room="客厅"))),
        {"request": "打开那里的灯。"}, (told("L0", "我在哪里?", "你在厨房。"),),
    ),
    BlameCase(
        "what was handed over is not what was written",
        ("summary:L0", None, "summary_altered", None), (FAILED,),
        (ROUTE, hop(messages=(user("(The cat is Muffin.) Print its name."),))),
        {"request": "Print its name."}, (CAT,), None, {"t0": ("h0", "The cat is Biscuit.")},
    ),
    BlameCase(
        "a name that the summary made up", ("summary:L0", None, "summary_untrue", None), (FAILED,),
        (ROUTE, hop(messages=(user("(The cat is Muffin.) Print it."),), completion=says("Muffin"))),
        {"request": "Print it."}, (CAT,), None, {"t0": ("h0", "The cat is Muffin.")},
    ),
    BlameCase(
        "a room that the tools list and the summary lost",
        ("summary:L0", None, "summary_lost", None), (light("kitchen"),),
        (ROUTE, home("Light that room.", answer=calls("light", room="attic"), tools=ROOMS)),
        {"request": "Light that room."}, (told("L0", "Where am I?", "In the kitchen."),),
    ),
    BlameCase(
        "nobody said which room", ("user", None, "underspecified", 1), (light("kitchen"),),
        (ROUTE, home("Light, please.", answer=calls("light", room="attic"))),
        {"request": "Light, please."},
    ),
    BlameCase(
        "nobody said which room, and another slot answered", ("user", None, "underspecified", 1),
        (light("kitchen"),), (ROUTE, hop(messages=(user("Light, please."),))),
        {"request": "Light, please."},
    ),
    BlameCase(
        "the edit names a room that nobody named", ("user", None, "unsaid", 1),
        (signal("edit", None, correction=calls("light", room="kitchen")),),
        (ROUTE, home("Light, please.", answer=calls("light", room="attic"))),
        {"request": "Light, please."},
    ),
    BlameCase(
        "the same, of a call that shows by itself", ("user", None, "unsaid", 1),
        (SHOWN, signal("edit", None, correction=calls("light", room="kitchen"))),
        (ROUTE, home("Light, please.", answer=calls("light"))), {"request": "Light, please."},
    ),
    BlameCase(
        "the request ends where it should name something", ("user", None, "vague", 1),
        (short("Oslo", "short_answer"),),
        (ROUTE, hop(slot="L0", messages=(user("Which city is the capital of?"),))),
        {"request": "Which city is the capital of?"},
    ),
    BlameCase(
        "an earlier answer may have been wrong already", ("unknown", None, "points_back", None),
        (light("kitchen"),), (ROUTE, SENT), {"request": "Light where you said."},
        (told("L0", "Where am I?", "In the attic."),),
    ),
    BlameCase(
        "what a slot says of a tool's result is its own business",
        ("adapter:L1", None, "other_verifier", 1), (short("14", "short_answer"),),
        spoken('{"lamps": 14}', "Those were 77 lamps."),
    ),
    BlameCase(
        "a call that no tool takes is not", ("router:L0", "L0", "foreign_verifier", 0),
        (short("14", "short_answer"),),
        (ROUTE, home("7 plus 7?", answer=calls("light", lamps=7))), {"request": "7 plus 7?"},
    ),
    BlameCase(
        "the request points at nothing", ("user", None, "vague", 1),
        (short("Oslo", "short_answer"),),
        (ROUTE, hop(slot="L0", messages=(user("What is the capital of that country?"),))),
        {"request": "What is the capital of that country?"},
    ),
    BlameCase(
        "cut before it could be right", ("unknown", None, "truncated", None), (FAILED,),
        (ROUTE, hop(finish_reason="length", completion=says("def long_one("))),
    ),
    BlameCase(
        "cut while it went on and on", ("adapter:L0", None, "own_verifier", 1),
        (short("Oslo", "short_answer"),),
        (ROUTE, hop(slot="L0", finish_reason="length", completion=says(RAMBLING))),
    ),
    BlameCase(
        "the last call, which shows by itself", ("adapter:L1", None, "broken_call", 2), (SHOWN,),
        (*ASKED[:2], ASKED[2].model_copy(update={"completion": calls("lamp")})),
    ),
    BlameCase(
        "what shows by itself", ("adapter:L2", None, "other_verifier", 1), (SHOWN,),
    ),
    BlameCase(
        "a call that no tool takes", ("adapter:L1", None, "broken_call", 1), (CALL_FAILED,),
        (ROUTE, home(KITCHEN, answer=calls("lamp", room="kitchen"))), {"request": KITCHEN},
    ),
    BlameCase(
        "words where a call was due", ("adapter:L1", None, "malformed", 1), (CALL_FAILED,),
        (ROUTE, home(KITCHEN, answer=says("I will light the kitchen."))), {"request": KITCHEN},
    ),
    BlameCase(
        "a room that was named and not used", ("adapter:L1", None, "altered", 1),
        (light("kitchen"),), (ROUTE, home(KITCHEN, answer=calls("light", room="attic"))),
        {"request": KITCHEN},
    ),
    BlameCase("the slot's own verifier", ("adapter:L2", None, "own_verifier", 1), (FAILED,)),
    BlameCase(
        "a verifier of no slot", ("adapter:L2", None, "other_verifier", 1),
        (signal(name="house_style", value=0.0),),
    ),
    BlameCase(
        "the user wrote other code", ("adapter:L2", None, "edited", 1),
        (signal("edit", None, correction=says("x = sorted(items)")),),
    ),
    BlameCase("the user's thumb", ("adapter:L2", None, "disliked", 1), (THUMB,)),
    BlameCase(
        "asked again, nothing else", ("unknown", None, "no_rule", None), (signal("retry", None),)
    ),
)  # fmt: skip
