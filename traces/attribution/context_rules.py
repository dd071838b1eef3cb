"""Rules about what the slot was given: summaries that lost something, requests that lack it.

What the right answer needs is compared with what the slot saw. What is missing stood in an
earlier turn, then its summary lost it, or nowhere, then the model could not know it.
"""

import re
from collections.abc import Iterator

from serving.records import BASE_SLOT, Message, Turn
from traces.attribution.case import Case, Claim, text_of
from traces.attribution.literals import (
    Literal,
    folded,
    in_substance,
    is_common,
    is_number,
    literals_of,
    stands_in,
    strong_ones,
)

_WORKED_OUT = re.compile(r"\d{4}-\d\d|\d{1,2}:\d\d|\d\d?[./]\d\d?[./]|https?:|/")
"""Dates, times, addresses: usually worked out from the request, not copied."""
_VAGUE = re.compile(
    r"(?:\b(?:it|that|this|them|those|these|one|ones)"
    r"|\b(?:that|this|those|these|some|a certain) \w+"
    r"|\b(?:some(?:thing|one|where|body|how)|whatever)\b.*"
    r"|\b(?:of|and|or|plus|than|between|the|a|an)"
    r"|[它那这]个?|某个?\w*|那个\w*)\W*$",
    re.IGNORECASE,
)
_CLAUSES = re.compile(r"[,;:，；：、—]|\.\s|\band\b", re.IGNORECASE)
_VAGUE_WORDS = 14
_BACK = re.compile(
    r"\b(?:it|its|that|this|those|these|them|he|she|his|her|they|answer|result|earlier|before|above"
    r"|previous|last|again|same|you (?:said|gave|told|wrote))\b|[它他她那这]|刚才|上面|之前|上次",
    re.IGNORECASE,
)


def summary_lost(case: Case) -> Claim | None:
    """A literal of the right answer stood in an earlier turn and not in what the slot saw."""
    needed = list(_needed(case))
    if not needed:
        return None
    tools = "" if _points_back(case) else "\n".join(hop.tools for hop in case.answers)
    said = [(turn, folded(_said(turn))) for turn in reversed(_others(case))]
    for literal, copied in needed:
        word = folded(literal.text)
        # A value that a tool lists may be chosen without having been said.
        if stands_in(word, case.seen) or f'"{literal.text}"' in tools:
            continue
        for turn, text in said:
            if not stands_in(word, text):
                continue
            evidence = (
                f"{literal.text!r} of the right answer stood in turn {turn.position} with "
                f"{turn.slot}, and its summary did not hand it over to {case.turn.slot}"
            )
            # What stands in any text may be known without an earlier turn.
            surely = copied or (literal.strong and _BACK.search(case.turn.request))
            return _summary(case, turn, evidence, 1.0 if surely else 0.7)
    return None


def summary_altered(case: Case) -> Claim | None:
    """What was handed over of an earlier turn lacks names or numbers of its recorded summary."""
    if not case.summaries or (case.right is not None and case.right.copied):
        return None
    for turn in reversed(_others(case)):
        _, text = case.summaries.get(turn.turn_id, ("", ""))
        recorded = literals_of(Message(role="assistant", content=text))
        lost = [x for x in recorded if x.strong and not stands_in(folded(x.text), case.given)]
        if lost:
            evidence = (
                f"the summary of turn {turn.position} by {turn.slot} says {lost[0].text!r}, "
                f"and what {case.turn.slot} was given does not"
            )
            return _summary(case, turn, evidence, 1.0)
    return None


def summary_untrue(case: Case) -> Claim | None:
    """The answer says what a summary handed over, and the turn summed up has no such thing."""
    if not case.summaries or case.final is None or case.outcome.success is not False:
        return None
    words = literals_of(case.final)
    if len(words) > 1:
        words = strong_ones(words)
    right = [folded(each.text) for each in case.right.literals] if case.right else []
    told = folded("\n".join([case.turn.request, *(_said(turn) for turn in case.earlier)]))
    for turn in reversed(_others(case)):
        text = folded(case.summaries.get(turn.turn_id, ("", ""))[1])
        for word in (folded(each.text) for each in words if not is_common(each.text)):
            if word in right or not stands_in(word, text) or stands_in(word, told):
                continue
            if stands_in(word, case.given):
                evidence = (
                    f"{case.turn.slot} says {word!r}, which the summary of turn {turn.position} by "
                    f"{turn.slot} handed over and that turn does not have"
                )
                return _summary(case, turn, evidence, 1.0)
    return None


def underspecified(case: Case) -> Claim | None:
    """The right answer needs what neither the request nor anything the slot saw contains.

    What a verifier was given is right whoever answers, so no slot could have known it.
    """
    return _left_out(case) if case.outcome.rule == "verified" else None


def unsaid(case: Case) -> Claim | None:
    """The user's edit has what nobody told the slot; another slot may have been meant for it."""
    return _left_out(case) if case.outcome.rule != "verified" else None


def _left_out(case: Case) -> Claim | None:
    absent = _absent(case)
    if absent is None or _points_back(case):
        return None
    evidence = f"the right answer needs {absent!r}, and nothing that {case.turn.slot} saw has it"
    # An earlier answer that was wrong already looks the same.
    doubt = 0.8 if _others(case) else 1.0
    return Claim("user", evidence, hop=case.id_of(case.answers[0]), factor=doubt)


def points_back(case: Case) -> Claim | None:
    """The same, and the request points back to a turn that does not have it either."""
    absent = _absent(case)
    if absent is None or not _points_back(case):
        return None
    return case.abstain(
        f"the right answer needs {absent!r}, which {case.turn.slot} did not see; what the request "
        "points back to may have been wrong already"
    )


def _absent(case: Case) -> str | None:
    """Return what the right answer takes from its input and the slot's input has not."""
    if case.right is None:
        return None
    tools = case.answers[0].tools
    for each in case.right.copied:
        if not each.strong or _WORKED_OUT.search(each.text) or f'"{each.text}"' in tools:
            continue
        if not in_substance(folded(each.text), case.seen) and not _was_said(case, each.text):
            return each.text
    return None


def _was_said(case: Case, literal: str) -> bool:
    """Whether an earlier turn has it: then it was lost, not left out."""
    return any(stands_in(folded(literal), folded(_said(turn))) for turn in _others(case))


def _points_back(case: Case) -> bool:
    return bool(case.earlier) and _BACK.search(case.turn.request) is not None


def vague(case: Case) -> Claim | None:
    """The first request of a conversation points at something that nobody named."""
    request = case.turn.request.strip()
    if case.earlier or case.right is None or case.right.copied or not request:
        return None
    if sum(m.role == "user" for m in case.answers[0].messages) != 1:
        return None
    if len(request.split()) > _VAGUE_WORDS or _CLAUSES.search(request.rstrip(".!?。！？")):
        return None
    found = _VAGUE.search(request)
    if found is None or any(stands_in(folded(x.text), case.seen) for x in case.right.literals):
        return None
    evidence = f"the request points at something that nobody named: {found[0].strip()!r}"
    return Claim("user", evidence, hop=case.id_of(case.answers[0]))


def _needed(case: Case) -> Iterator[tuple[Literal, bool]]:
    """Yield the literals of the right answer, and whether it must have them from what it saw."""
    if case.right is None:
        return
    copied = {each.text for each in case.right.copied}
    for each in (*case.right.copied, *case.right.literals):
        short = len(each.text) < 2 and not is_number(each.text)
        if not short:
            yield each, each.text in copied


def _others(case: Case) -> list[Turn]:
    """Return the earlier turns that this slot knows from summaries alone."""
    return [turn for turn in case.earlier if turn.slot not in (None, case.turn.slot)]


def _said(turn: Turn) -> str:
    return turn.request + "\n" + (text_of(turn.answer) if turn.answer else "")


def _summary(case: Case, turn: Turn, evidence: str, factor: float) -> Claim:
    # Nobody trains the base model, whose summaries these are.
    slot = None if turn.slot == BASE_SLOT else turn.slot
    hop = case.summaries[turn.turn_id][0] if turn.turn_id in case.summaries else None
    return Claim("summary", evidence, slot, hop=hop, factor=factor)
