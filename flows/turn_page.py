"""A turn as a person wants to read it: who, what came of it, whose doing, and each hop's news.

In: a `TurnStory`. Out: lines of rich text, which are plain where they are piped. A hop
shows what is new in its messages against an earlier hop of the turn, not the whole
history again; `full` cuts nothing and leaves nothing out.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from flows.console import moment, short_id
from flows.message_page import Cuts, flat, message_lines, said
from serving.records import Hop, Message, short_digest

if TYPE_CHECKING:
    from traces.bundles import TurnBundle
    from traces.lookup import TurnStory

_LABEL = 10
_STATES = {
    True: ("success", "bold green"),
    False: ("failure", "bold red"),
    None: ("no verdict", "bold"),
}
_EARLIER_TURNS = 6
_NEW_MESSAGES = 8


def turn_lines(story: "TurnStory", full: bool = False) -> Iterator[Text]:
    """Yield the lines of one turn."""
    cuts = Cuts.none() if full else Cuts()
    yield from _head(story, cuts)
    yield from _lineage(story)
    yield from _earlier(story, full)
    yield from _hops(story.bundle.hops, full, cuts)
    missing = len(story.bundle.turn.hop_ids) - len(story.bundle.hops)
    if missing:
        yield Text(f"{missing} hops of this turn are not in the lake", "red")
    if story.bundle.turn.tail:
        yield Text("\nafter the last call", "bold")
        for message in story.bundle.turn.tail:
            yield from message_lines(message, cuts)


def _labelled(label: str, *parts: str | tuple[str, str] | Text) -> Text:
    return Text.assemble((label.ljust(_LABEL), "dim"), *parts)


def _head(story: "TurnStory", cuts: Cuts) -> Iterator[Text]:
    turn = story.bundle.turn
    when = moment(turn.started_at, "%Y-%m-%d %H:%M:%S UTC") or "undated"
    when += f", {turn.duration_s:.1f} s" if turn.duration_s >= 0.05 else ""
    yield Text.assemble(
        ("turn".ljust(_LABEL), "dim"), (short_id(turn.turn_id), "bold"),
        f", number {turn.position + 1} of {short_id(turn.conversation_id)}, {when}",
    )  # fmt: skip
    about = {"": turn.user or "unknown user", "workload ": turn.workload, "task ": turn.task,
             "from ": turn.source}  # fmt: skip
    canary = ["canary"] if turn.canary else []
    yield _labelled("who", ", ".join([f"{k}{v}" for k, v in about.items() if v] + canary))
    yield from _route(story)
    yield _labelled("asked", flat(turn.request, cuts.message))
    answer = said(turn.answer, cuts, _LABEL) if turn.answer else Text("nothing", "red")
    yield _labelled("answered", answer)
    if turn.supersedes:
        yield _labelled("again", f"asked again; supersedes turn {short_id(turn.supersedes)}")
    yield from _outcome(story, cuts)
    blame = story.bundle.blame
    if blame is not None:
        sure = f", confidence {blame.confidence:.2f}: {blame.evidence}"
        right = f"; {blame.right_slot} should have answered" if blame.right_slot else ""
        yield _labelled("blame", (blame.label, "bold red"), sure + right)
        yield _labelled("", f"found by {', '.join(_found_by(story.bundle))}")


def _found_by(bundle: "TurnBundle") -> Iterator[str]:
    """Yield what decided the blame, the call it rests on, and what a replay said."""
    assert bundle.blame is not None
    blame = bundle.blame
    yield blame.method + (f" ({blame.rule})" if blame.rule else "")
    for number, hop in enumerate(bundle.hops, 1):
        if blame.hop_id is not None and hop.hop_id == blame.hop_id:
            yield f"decisive call {number}: {hop.role} by {hop.served_name or hop.model}"
    if blame.verdict is not None:
        yield f"verdict of the replay: {blame.verdict}"


def _route(story: "TurnStory") -> Iterator[Text]:
    turn = story.bundle.turn
    version = f"{turn.slot or 'no slot'}{f'@{turn.digest}' if turn.digest else ''}"
    routes = [hop for hop in story.bundle.hops if hop.role == "route"]
    odds = []
    if routes and routes[-1].propensity is not None:
        odds.append(f"propensity {routes[-1].propensity:.2f}")
    if routes and routes[-1].confidence is not None:
        odds.append(f"confidence {routes[-1].confidence:.2f}")
    status = f", {turn.status}{f': {turn.error}' if turn.error else ''}"
    yield _labelled(
        "route",
        f"{turn.decision} to ", (version, "bold"), "".join(f", {odd}" for odd in odds),
        (status, "" if turn.status == "ok" else "red"),
    )  # fmt: skip


def _outcome(story: "TurnStory", cuts: Cuts) -> Iterator[Text]:
    outcome = story.bundle.outcome
    words, style = _STATES[outcome.success]
    tier = f", tier {outcome.tier}" if outcome.tier else ""
    yield _labelled("outcome", (words, style), f" ({outcome.rule}{tier})")
    for signal in json.loads(outcome.signals):
        yield _labelled("", _signal(signal, cuts))
    if outcome.truncated:
        yield _labelled("", "an answer was cut at its token limit")
    if outcome.correction is not None:
        yield _labelled("wanted", said(outcome.correction, cuts, _LABEL))


def _signal(signal: dict[str, Any], cuts: Cuts) -> str:
    kind, name = signal["kind"], signal["name"]
    said_by = ", ".join(filter(None, [signal.get("annotator"), signal.get("user")]))
    parts = [
        moment(datetime.fromisoformat(signal["created_at"])),
        kind if name == kind else f"{kind} {name}",
        "" if signal["value"] is None else f"{signal['value']:+g}",
        f"by {said_by}" if said_by else "",
    ]
    detail = f": {flat(signal['detail'], cuts.line)}" if signal.get("detail") else ""
    return " ".join(filter(None, parts)) + detail


def _lineage(story: "TurnStory") -> Iterator[Text]:
    learned = story.learned
    if learned is not None:
        serves = learned["serves"] or (
            "served before" if learned["first_served_at"] else "never served"
        )
        if learned["manifest_digest"]:
            what = (
                f"learned from dataset {short_digest(learned['manifest_digest'])}, "
                f"{learned['train_rows'] or 0} rows, gate {learned['gate_verdict'] or 'not asked'}"
            )
        else:
            what = "imported; what it learned from is not known"
        yield _labelled("version", f"{learned['slot']}@{learned['digest']}: {what}; {serves}")
    for row in _grouped(story.taught):
        yield _labelled("taught", row)


def _grouped(taught: Sequence[dict[str, Any]]) -> list[str]:
    """Say in one line a dataset what was made of the turn and who learned from it."""
    lines: dict[str, tuple[set[str], set[str]]] = {}
    for row in taught:
        head = f"dataset {short_digest(row['manifest_digest'])} ({row['split']})"
        rows, versions = lines.setdefault(head, (set(), set()))
        rows.add(f"{row['duty']} by {row['source']}, {row['example_id'][7:19]}")
        if row["digest"]:
            versions.add(f"{row['slot']}@{row['digest']}")
    return [
        f"{head}: {'; '.join(sorted(rows))} -> {', '.join(sorted(versions)) or 'no version yet'}"
        for head, (rows, versions) in lines.items()
    ]


def _earlier(story: "TurnStory", full: bool) -> Iterator[Text]:
    if not story.earlier:
        return
    cut = Cuts.none().line if full else 70
    shown = story.earlier if full else story.earlier[-_EARLIER_TURNS:]
    yield Text("\nthe conversation so far", "bold")
    if len(shown) < len(story.earlier):
        yield Text(f"  ... {len(story.earlier) - len(shown)} earlier turns", "dim")
    for row in shown:
        words = "asked again" if row["rule"] == "superseded" else _STATES[row["success"]][0]
        yield Text(
            f"  {row['position'] + 1}. {flat(row['request'], cut)} -> {row['slot'] or 'no slot'}: "
            f"{flat(row['answer'] or '', cut) or 'a tool call or nothing'} ({words})"
        )


def _hops(hops: Sequence[Hop], full: bool, cuts: Cuts) -> Iterator[Text]:
    replaced = {hop.supersedes: number for number, hop in enumerate(hops, 1) if hop.supersedes}
    for number, hop in enumerate(hops, 1):
        later = replaced.get(hop.hop_id)
        yield Text()
        yield _hop_head(number, hop, later)
        if hop.error:
            yield Text(f"   error: {flat(hop.error, cuts.message)}", "red")
        for line in _news(hops[: number - 1], hop, full, cuts):
            if later is not None:
                line.stylize("dim")
            yield line
        if hop.reasoning:
            yield Text(f"   thought: {flat(hop.reasoning, cuts.message)}", "dim italic")
        if hop.completion is not None:
            yield Text.assemble(("   > ", "bold"), said(hop.completion, cuts))


def _hop_head(number: int, hop: Hop, later: int | None) -> Text:
    facts: list[str] = [hop.status] if hop.status != "ok" else []
    facts += [f"superseded by {later}, a later attempt"] if later is not None else []
    facts += ["a further attempt"] if hop.supersedes else []
    facts += [f"{hop.duration_s:.2f} s"] if hop.duration_s else []
    facts += [f"first token after {hop.ttft_s:.2f} s"] if hop.ttft_s is not None else []
    if hop.prompt_tokens is not None:
        cached = f" ({hop.cached_tokens} cached)" if hop.cached_tokens is not None else ""
        facts.append(f"{hop.prompt_tokens}{cached} + {hop.completion_tokens or 0} tokens")
    facts += [f"ended by {hop.finish_reason}"] if hop.finish_reason not in (None, "stop") else []
    broken = hop.status != "ok" and later is None
    return Text.assemble(
        (f"{number}. {hop.role}", "bold" if later is None else "dim"),
        f" {hop.served_name or hop.model}",
        ("".join(f", {fact}" for fact in facts), "red" if broken else ""),
    )


def _news(before: Sequence[Hop], hop: Hop, full: bool, cuts: Cuts) -> Iterator[Text]:
    """Yield the messages that the most similar earlier hop had not seen or said."""
    tools = _tool_names(hop.tools)
    if tools and not any(earlier.tools == hop.tools for earlier in before):
        yield Text(f"   {_count(len(tools), 'tool')}: {flat(', '.join(tools), cuts.line)}", "dim")
    shared, number = max(
        ((_in_common(_whole(earlier), hop.messages), n) for n, earlier in enumerate(before, 1)),
        default=(0, 0),
    )
    if shared:
        yield Text(f"   {_count(shared, 'message')} as in {number}", "dim")
    new = hop.messages[shared:]
    left_out = 0 if full else max(0, len(new) - _NEW_MESSAGES)
    # The first says who is asked, the last ones what.
    for index, message in enumerate(new):
        if left_out and index == 1:
            yield Text(f"   ... {_count(left_out, 'message')} left out, '--full' shows them", "dim")
        if index == 0 or index > left_out:
            yield from message_lines(message, cuts)


def _whole(hop: Hop) -> tuple[Message, ...]:
    return (*hop.messages, hop.completion) if hop.completion is not None else hop.messages


def _in_common(first: Sequence[Message], second: Sequence[Message]) -> int:
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _tool_names(tools: str) -> list[str]:
    try:
        offered = json.loads(tools)
        return [str(tool.get("function", tool).get("name")) for tool in offered]
    except (ValueError, AttributeError, TypeError):
        return []


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
