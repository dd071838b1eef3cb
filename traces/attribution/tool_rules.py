"""Rules about tools: results that report an error, are damaged, or are not true.

A tool is at fault only for a right call: a wrong one is its writer's fault.
"""

import json
from collections import defaultdict
from typing import Any

from serving.records import canonical_json
from traces.attribution.case import Case, Claim, Exchange
from traces.attribution.form_checks import tools_in
from traces.attribution.literals import (
    folded,
    in_substance,
    is_number,
    literals_of,
    numbers_of,
    stands_in,
)
from traces.attribution.tool_results import agreed, brackets, close_s, unlike
from traces.verifiers.tool_result import tool_error

_FEW_NUMBERS = 2
_DAMAGED = 0.02
"""Share of characters that no text has."""
_CONTROL = {chr(code) for code in range(32)} - {"\t", "\n", "\r", "\x1b"} | {"\ufffd"}


def tool_reported(case: Case) -> Claim | None:
    """A result of a right call reports an error."""
    for each in case.right_calls:
        error = tool_error(each.result)
        if error is not None:
            return _tool(case, each, f"a tool result reports an error: {error}")
    return None


def tool_damaged(case: Case) -> Claim | None:
    """A result that the answer was made from is empty, cut, or no text."""
    for each in case.right_calls:
        problem = damage(each.result)
        if problem is not None and each.seen is not None:
            return _tool(case, each, f"the result of {each.call.name} is {problem}")
    return None


def damage(content: str) -> str | None:
    """Return how a tool result is damaged by its looks, None if it looks well."""
    text = content.strip()
    if text in ("", "null", "{}", "[]", '""'):
        return "empty"
    if sum(c in _CONTROL for c in text) > _DAMAGED * len(text):
        return "not text"
    if text[0] in '{["':
        try:
            json.loads(text)
        except RecursionError:
            return None
        except ValueError:
            return "cut or broken JSON" if text[0] != "[" or '"' in text else None
    return None


def tool_mismatched(case: Case) -> Claim | None:
    """A result names another value than the call did for the same thing: it answers another."""
    for each in case.right_calls:
        asked, told = _object(each.call.arguments), _object(each.result)
        for key in asked.keys() & told.keys():
            one, other = asked[key], told[key]
            if type(one) is not type(other) or not isinstance(one, str | int | float):
                continue
            if folded(str(one)).strip() != folded(str(other)).strip():
                evidence = f"the call asked for {key} {one!r}, the result is about {other!r}"
                return _tool(case, each, evidence)
    return None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def tool_contradicted(case: Case) -> Claim | None:
    """The same call gave another result elsewhere in the view; surer if the right answer has it."""
    right = _expected(case)
    for each in case.right_calls:
        if each.seen is None:
            continue
        mine, others = folded(each.result), _same_calls(case, each)
        if not others or mine in others:
            continue
        telling = [word for word in right if not stands_in(word, mine)]
        better = any(stands_in(word, other) for word in telling for other in others)
        if right and not better:
            continue
        evidence = f"the same call of {each.call.name} gave another result elsewhere"
        evidence += ", which the right answer agrees with" if better else ""
        return _tool(case, each, evidence, factor=1.0 if better else 0.7)
    return None


def tool_disputed(case: Case) -> Claim | None:
    """Equal calls of other turns agree on another result, close in time.

    They count where the right answer is known and agrees with them. Else the same user must have
    got theirs before and after, so that neither time nor who asked explains the difference.
    """
    right = _expected(case)
    for each in case.right_calls:
        limit_s = close_s(tools_in(each.made.tools), each.call.name)
        others = agreed(each.result, case.elsewhere.get(each.call.id, ()), limit_s)
        if each.seen is None or not others:
            continue
        mine, theirs = folded(each.result), folded(others[0].result)
        better = any(stands_in(x, theirs) and not stands_in(x, mine) for x in right)
        if not better and (right or not brackets(others)):
            continue
        evidence = f"{len(others)} equal calls of {each.call.name} gave another result about then"
        evidence += ", which the right answer agrees with" if better else ""
        return _tool(case, each, evidence, factor=1.0 if better else 0.7)
    return None


def tool_unlike(case: Case) -> Claim | None:
    """A result does not look like those of the same tool in turns that went well."""
    for each in case.right_calls:
        found = unlike(each.result, case.shapes.get(each.call.name, {}))
        if found is not None:
            known = case.right is not None and case.right.call is not None
            # A call that nobody says is right may have been refused for what it asked.
            evidence = f"the result of {each.call.name} {found}"
            return _tool(case, each, evidence, 1.0 if known else 0.8)
    return None


def tool_untrue(case: Case) -> Claim | None:
    """The answer says what the tool said, and the right answer says something else."""
    right = _unheard(case)
    if not right or case.final is None or case.final.tool_calls:
        return None
    said = [folded(each.text) for each in literals_of(case.final)]
    said += numbers_of(case.final.content)
    for each in case.right_calls:
        result = folded(each.result)
        repeated = [word for word in said if stands_in(word, result) and word not in case.given]
        if each.seen is not None and repeated:
            evidence = f"the answer repeats {repeated[0]!r} from {each.call.name}, and nothing that"
            return _tool(case, each, f"{evidence} it was given says what is right")
    return None


def tool_lacking(case: Case) -> Claim | None:
    """The right answer has a number that the result of a right call should have and has not.

    A number may also be worked out from others: a result with several leaves that open.
    """
    right = [word for word in _unheard(case) if is_number(word) or ":" in word]
    if len(right) != 1:
        return None
    for each in case.right_calls:
        if each.seen is not None and len(numbers_of(each.result)) <= _FEW_NUMBERS:
            name = each.call.name
            return _tool(case, each, f"the right answer has {right[0]!r}, which {name} lacks")
    return None


def _unheard(case: Case) -> list[str]:
    """Return the literals of a right answer in words, if the slot saw none of them."""
    right = _expected(case)
    return [] if any(in_substance(word, case.seen) for word in right) else right


def call_undone(case: Case) -> Claim | None:
    """The expected call was made and its verifier failed all the same: what came of it did."""
    judged = [name for name in case.failed if name == "tool_call"]
    if not judged or not case.called_as_expected or not case.exchanges:
        return None
    return _tool(case, case.exchanges[0], "the call was as expected, and what came of it was not")


def _expected(case: Case) -> list[str]:
    """Return the literals of a right answer in words; a call's arguments come before its result."""
    if case.right is None or case.right.form == "call":
        return []
    return [folded(each.text) for each in case.right.literals]


def _same_calls(case: Case, each: Exchange) -> set[str]:
    """Return the folded results of equal calls in what the slot saw."""
    key = each.call.name, _canonical(each.call.arguments)
    names: dict[str, tuple[str, str]] = {}
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for message in case.answers[-1].messages:
        for call in message.tool_calls:
            names[call.id] = call.name, _canonical(call.arguments)
        if message.role == "tool" and message.tool_call_id not in (None, each.call.id):
            made = names.get(str(message.tool_call_id))
            if made == key:
                found[key].add(folded(message.content))
    return found[key]


def _canonical(arguments: str) -> str:
    try:
        return canonical_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _tool(case: Case, each: Exchange, evidence: str, factor: float = 1.0) -> Claim:
    hop = each.seen or each.made
    return Claim("tool", evidence, hop=case.id_of(hop), factor=factor)
