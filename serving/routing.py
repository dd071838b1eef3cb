"""Decide a turn's slot: keyword rules, the `change_model` tool, thresholds and exploration.

Pure functions: in go the slot table's rules, the user's text and what a router chose; out
comes the slot with the reason and the probability of that choice. `serving.turn` asks the
engine, these decide.
"""

import json
import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from serving.config import RouterConfig
from serving.errors import MolError
from serving.records import BASE_SLOT, Decision, Message
from serving.slots import Profile

CHANGE_MODEL = "change_model"
MAX_RULE_CHARS = 2000
MAX_TERM_CHARS = 80
MAX_TEXT_CHARS = 20_000
"""Rules look at the two ends of a longer text."""

_UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x2E80, 0x9FFF),
    (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Scripts that join words without spaces: Thai, Lao, Burmese, Khmer, CJK, Hangul's particles."""


class RuleInvalid(MolError, ValueError):
    """A routing rule is not a list of words and phrases."""


class ChoiceInvalid(MolError, ValueError):
    """A `change_model` call names no slot."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A slot's words and phrases, in the form that texts are compared in."""

    terms: tuple[str, ...] = ()
    """All of them, the overriding ones too."""
    overrides: frozenset[str] = frozenset()
    """Those that overrule the router in any mode."""


@dataclass(frozen=True, slots=True)
class RuleHit:
    """The slot that a text's words ask for."""

    slot: str
    override: bool
    """Whether it overrules the router."""
    terms: tuple[str, ...]
    """Those found in the text."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Where a turn goes, and why."""

    slot: str
    """A label, or `base`."""
    decision: Decision
    propensity: float
    """Probability with which this policy takes this slot for this turn."""
    confidence: float | None
    """Probability the router gave its choice; None where it tells none, and for a rule."""


def parse_rule(text: str) -> Rule:
    """Read a routing rule: comma-separated words or phrases; `!word` overrules the router.

    An empty text is a rule that nothing hits.

    Raises:
        RuleInvalid: naming the part that is wrong.
    """
    return _parsed(text)


def rule_for(rules: Sequence[tuple[str, str]], text: str) -> RuleHit | None:
    """Return the slot whose rule fits `text` best, None if no word of any occurs in it.

    `rules` are slot names with their rules, in the order of the slot table. Case and
    width do not matter; a word must stand alone, but in scripts without spaces it may be
    part of a longer run. Overriding words come before others, then the rule with the most
    words found, then the first in the table.

    Raises:
        RuleInvalid: if a rule was never checked with `parse_rule`.
    """
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[: MAX_TEXT_CHARS // 2]} {text[-MAX_TEXT_CHARS // 2 :]}"
    folded = _folded(text)
    best, best_rank = None, (0, 0)
    for slot, raw in rules:
        rule = _parsed(raw)
        found = tuple(term for term in rule.terms if _occurs(term, folded))
        overriding = sum(term in rule.overrides for term in found)
        if (overriding, len(found)) > best_rank:
            best, best_rank = RuleHit(slot, overriding > 0, found), (overriding, len(found))
    return best


def change_model_tool(profile: Profile) -> dict[str, Any]:
    """Return the tool with which the router slot hands a turn to another slot.

    The router answers itself by not calling it.
    """
    others = [slot for slot in profile.slots if slot.name != profile.router]
    listed = "; ".join(f"{slot.name}: {slot.description}" for slot in others)
    return {
        "type": "function",
        "function": {
            "name": CHANGE_MODEL,
            "description": f"Hand this request to the expert for it. {listed}".rstrip(),
            "parameters": {
                "type": "object",
                "properties": {
                    "model_id": {
                        "type": "string",
                        # An empty enum is no valid schema.
                        "enum": [slot.name for slot in others] or [profile.router],
                    }
                },
                "required": ["model_id"],
                "additionalProperties": False,
            },
        },
    }


def chosen_by_tool(message: Message, labels: Sequence[str]) -> str | None:
    """Return the slot that a `change_model` call asks for, None if there is no such call.

    Of several calls the first counts.

    Raises:
        ChoiceInvalid: if it names none of `labels`.
    """
    call = next((c for c in message.tool_calls if c.name == CHANGE_MODEL), None)
    if call is None:
        return None
    try:
        chosen = json.loads(call.arguments)["model_id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        chosen = None
    if not isinstance(chosen, str) or chosen not in labels:
        raise ChoiceInvalid(
            f"{CHANGE_MODEL} was called with {call.arguments[:80]!r}; it takes "
            f'{{"model_id": ...}} with one of {", ".join(labels)}.'
        )
    return chosen


def propensities(config: RouterConfig, labels: Sequence[str], greedy: str) -> dict[str, float]:
    """Return the probability of each label when the router chose `greedy`."""
    even = config.epsilon / len(labels)
    return {label: even + (1.0 - config.epsilon) * (label == greedy) for label in labels}


def settle(
    config: RouterConfig,
    labels: Sequence[str],
    greedy: str,
    confidence: float | None,
    rule: RuleHit | None,
    rng: random.Random,
) -> Settled:
    """Decide a turn's slot from the router's choice and what the rules say.

    In this order: an overriding rule; the base model where `confidence` is below
    `config.min_confidence` (a router that tells none counts as sure); a draw from all
    labels for a share `config.epsilon` of turns; the router's choice. The first two are
    never explored, so their propensity is 1. In mode `rules`, pass the hit's slot as
    `greedy`, or the router slot if there was no hit.
    """
    assert greedy in labels, f"{greedy!r} is none of {labels!r}"
    if rule is not None and rule.override:
        return Settled(rule.slot, "rule", 1.0, None)
    if confidence is not None and confidence < config.min_confidence:
        return Settled(BASE_SLOT, "unsure", 1.0, confidence)
    by_rule = config.mode == "rules" and rule is not None and rule.slot == greedy
    decision: Decision = "rule" if by_rule else "routed"
    taken = greedy
    if config.epsilon > 0 and rng.random() < config.epsilon:
        taken = rng.choice(labels)
    if taken != greedy:
        decision = "explored"
    return Settled(taken, decision, propensities(config, labels, greedy)[taken], confidence)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Rule:
    if len(text) > MAX_RULE_CHARS:
        raise RuleInvalid(
            f"Routing rule {text[:40]!r}... has {len(text)} characters; "
            f"at most {MAX_RULE_CHARS} are allowed. Leave out the rarer words."
        )
    if not text.strip():
        return Rule()
    terms: list[str] = []
    overrides: set[str] = set()
    for place, part in enumerate(_folded(text).split(","), start=1):
        term = part.strip().removeprefix("!").strip()
        problem = _term_problem(term, terms)
        if problem:
            raise RuleInvalid(
                f"Routing rule {text[:200]!r}: part {place}, {part.strip()!r}, {problem}. Write "
                "comma-separated words or phrases, '!' before those that overrule the router, "
                "such as 'lights, timer, !turn off the alarm'."
            )
        terms.append(term)
        if part.strip().startswith("!"):
            overrides.add(term)
    return Rule(tuple(terms), frozenset(overrides))


def _term_problem(term: str, before: Sequence[str]) -> str:
    if not term:
        return "is empty"
    if len(term) > MAX_TERM_CHARS:
        return f"is longer than {MAX_TERM_CHARS} characters"
    if not any(c.isalnum() for c in term):
        return "has no letter or digit"
    if any(unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") for c in term):
        return "holds a character that no text shows"
    if "!" in term:
        return "has '!' elsewhere than in front"
    return "stands there twice" if term in before else ""


def _folded(text: str) -> str:
    """Bring a text to one form: width, case, and single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _occurs(term: str, text: str) -> bool:
    """Say whether `term` stands in `text` as words of its own."""
    start = text.find(term)
    while start >= 0:
        end = start + len(term)
        before = start > 0 and _join(text[start - 1], text[start])
        if not before and not (end < len(text) and _join(text[end - 1], text[end])):
            return True
        start = text.find(term, start + 1)
    return False


def _join(left: str, right: str) -> bool:
    """Say whether two neighbouring characters belong to one word."""
    return _is_letter(left) and _is_letter(right)


def _is_letter(character: str) -> bool:
    if not (character.isalnum() or character == "_"):
        return False
    code = ord(character)
    return not any(first <= code <= last for first, last in _UNSPACED)
