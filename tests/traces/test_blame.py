"""Proves structural blame: each class from its evidence, and abstention without any.

Pure; the records are real, the texts made up.
"""

from typing import Any

import pytest
from trace_records import PROFILE, at, calls, hop, result, says, signal, turn_of, user

from serving.records import Feedback, Hop, Turn
from traces.attribution.blame import Blame, Context, blame
from traces.attribution.outcomes import settle

HOPS = [hop("route", "L0", completion=says("L2")), hop(), hop("summary")]
FAILED = signal(value=0.0)


def judged(
    *feedback: Feedback,
    hops: list[Hop] = HOPS,
    turn: Turn | None = None,
    context: Context | None = None,
    **fields: Any,
) -> Blame | None:
    turn = turn or turn_of(hops, **fields)
    return blame(turn, hops, settle(turn, feedback), context or Context(), PROFILE)


def label(*feedback: Feedback, **given: Any) -> str | None:
    verdict = judged(*feedback, **given)
    return verdict.label if verdict else None


def test_a_turn_that_did_not_fail_is_nobody_s_fault() -> None:
    assert judged(signal(value=1.0)) is None
    assert judged() is None


def test_a_failure_by_the_slot_s_own_verifier_is_its_adapter_s() -> None:
    verdict = judged(FAILED)

    assert verdict is not None
    assert (verdict.label, verdict.confidence) == ("adapter:L2", 0.87)


def test_an_explicit_failure_is_less_sure_than_a_verified_one() -> None:
    verdict = judged(signal("thumb", -1.0))

    assert verdict is not None
    assert (verdict.label, verdict.confidence) == ("adapter:L2", 0.3)


def test_a_failure_that_shows_by_itself_says_less_of_who_should_have_answered() -> None:
    shown = signal(value=0.0, name="component_schema", source="derived", annotator="code")
    verdict, logged = judged(shown), judged(signal(value=0.0, name="component_schema"))

    assert verdict is not None
    assert logged is not None
    assert (verdict.label, verdict.rule) == (logged.label, logged.rule)
    assert verdict.confidence == round(0.85 * logged.confidence, 2)


def test_an_implicit_signal_alone_never_claims_enough_to_train_on() -> None:
    verdict = judged(signal("retry", None))

    assert verdict is not None
    assert (verdict.label, verdict.confidence) == ("unknown", 0.0)


@pytest.mark.parametrize("status", ["engine_error", "broken_stream"])
def test_a_failed_engine_call_is_a_fallback(status: str) -> None:
    hops = [HOPS[0], hop(status=status, completion=None, error="404 gone")]

    assert label(hops=hops, status="failed") == "fallback"


def test_a_slot_chosen_by_fallback_is_a_fallback() -> None:
    assert label(FAILED, decision="fallback") == "fallback"


def test_an_abandoned_turn_is_unknown_even_if_its_stream_broke() -> None:
    hops = [HOPS[0], hop(status="broken_stream")]

    assert label(hops=hops, status="abandoned") == "unknown"


def test_a_refused_request_is_the_user_s() -> None:
    assert label(hops=[], status="failed", error="request refused: 404 no model") == "user"


@pytest.mark.parametrize("content", ['{"error": "no such room"}', '{"ok": false}'])
def test_a_tool_that_reports_an_error_is_to_blame(content: str) -> None:
    first = hop(completion=calls("light"))
    seen = (user("Light."), calls("light"), result(content))
    then = hop(messages=seen, started_at=at(1.5), seq=2)

    assert label(FAILED, hops=[HOPS[0], first, then]) == "tool"


@pytest.mark.parametrize(
    ("tools", "to_blame"),
    [
        ('[{"type": "function", "function": {"name": "light"}}]', "tool"),
        ('[{"type": "function", "function": {"name": "lamp"}}]', "adapter:L2"),
        ('[{"function": {"name": "light", "parameters": {"required": ["room"]}}}]', "adapter:L2"),
        ("not JSON", "tool"),
    ],
    ids=["offered", "made up", "against its schema", "unknown"],
)
def test_an_error_after_a_wrong_call_is_the_adapter_s(tools: str, to_blame: str) -> None:
    first = hop(completion=calls("light"), tools=tools)
    seen = (user("Light."), calls("light"), result('{"error": "no"}'), user("Summarise."))

    assert label(FAILED, hops=[HOPS[0], first, hop("summary", messages=seen)]) == to_blame


def test_a_tool_error_of_an_earlier_turn_is_not_this_turn_s() -> None:
    seen = (user("A."), calls("x", "old"), result('{"error": "e"}', "old"), user("B."))

    assert label(FAILED, hops=[HOPS[0], hop(messages=seen)]) == "adapter:L2"


def test_a_tool_result_without_an_answer_after_it_shows_in_the_summary_hop() -> None:
    first = hop(completion=calls("light"))
    seen = (user("Light."), calls("light"), result('{"ok": false}'), user("Summarise."))

    assert label(FAILED, hops=[HOPS[0], first, hop("summary", messages=seen)]) == "tool"


def test_a_verifier_of_another_slot_blames_the_router_and_names_the_slot() -> None:
    verdict = judged(signal(value=0.0, name="tool_call"))

    assert verdict is not None
    assert (verdict.label, verdict.right_slot) == ("router:L0", "L1")


def test_a_tool_call_as_right_answer_of_a_slot_without_tools_blames_the_router() -> None:
    verdict = judged(signal("edit", None, correction=calls("light", room="kitchen")))

    assert verdict is not None
    assert (verdict.label, verdict.right_slot) == ("router:L0", "L1")


def test_the_same_request_answered_well_by_another_slot_blames_the_router() -> None:
    again = turn_of([hop(slot="L1")], turn_id="t2", request="sort  a LIST!", position=1)
    context = Context(later=((again, settle(again, [signal(value=1.0)])),))

    verdict = judged(signal("thumb", -1.0), context=context)

    assert verdict is not None
    assert (verdict.label, verdict.right_slot) == ("router:L0", "L1")


def test_a_retry_that_failed_too_says_nothing_about_the_route() -> None:
    again = turn_of([hop(slot="L1")], turn_id="t2", position=1)
    context = Context(later=((again, settle(again, [signal(value=0.0)])),))

    assert label(signal("thumb", -1.0), context=context) == "adapter:L2"


def test_a_word_lost_between_slots_blames_the_summary_of_the_earlier_turn() -> None:
    earlier = turn_of([hop(slot="L0")], turn_id="t0", request="My cat is called Biscuit.")
    edit = signal("edit", None, correction=says("Your cat is called Biscuit."))

    assert label(edit, context=Context(earlier=(earlier,))) == "summary:L0"


def test_a_word_that_was_handed_over_is_the_adapter_s_to_use() -> None:
    earlier = turn_of([hop(slot="L0")], turn_id="t0", request="My cat is called Biscuit.")
    edit = signal("edit", None, correction=says('print("Biscuit")'))
    hops = [HOPS[0], hop(messages=(user("(The user's cat is Biscuit.) Its name?"),))]

    assert label(edit, hops=hops, context=Context(earlier=(earlier,))) == "adapter:L2"


def test_verifiers_that_contradict_each_other_leave_it_unknown() -> None:
    assert label(FAILED, signal(value=0.0, name="tool_call")) == "unknown"
    assert label(FAILED, signal(value=1.0)) == "unknown"


def test_a_cut_answer_is_noted() -> None:
    verdict = judged(FAILED, hops=[HOPS[0], hop(finish_reason="length")])

    assert verdict is not None
    assert "token limit" in verdict.evidence


@pytest.mark.parametrize(
    ("hops", "fields", "words"),
    [
        (HOPS[:2], {"hop_ids": tuple(h.hop_id for h in HOPS)}, "missing"),
        ([HOPS[0]], {"slot": "L2"}, "no answer"),
        ([HOPS[0], HOPS[1], hop(slot="L3", seq=2, started_at=at(2))], {}, "two answers"),
        ([HOPS[0], hop(started_at=at(-9))], {}, "backwards"),
    ],
)
def test_an_inconsistent_record_is_unknown_with_the_reason(
    hops: list[Hop], fields: dict[str, Any], words: str
) -> None:
    verdict = judged(FAILED, hops=hops, **fields)

    assert verdict is not None
    assert verdict.klass == "unknown"
    assert words in verdict.evidence


def test_the_base_model_s_failures_are_no_adapter_s() -> None:
    hops = [HOPS[0], hop(slot="base", model="base", served_name="base")]
    verdict = judged(FAILED, hops=hops, decision="unsure")

    assert verdict is not None
    assert (verdict.label, verdict.right_slot) == ("fallback", None)
    assert verdict.evidence == "the base model answered, for the router was not sure enough"
    assert label(FAILED, hops=hops[1:], decision="direct") == "fallback"


MISROUTED = signal(value=0.0, name="tool_call")
"""L1's verifier failed, and L2 answered."""


@pytest.mark.parametrize(
    ("decision", "to_blame", "right_slot"),
    [
        ("routed", "router:L0", "L1"),
        ("rule", "router", "L1"),
        ("explored", "fallback", "L1"),
    ],
)
def test_a_wrong_route_is_the_router_s_only_where_the_router_chose(
    decision: str, to_blame: str, right_slot: str
) -> None:
    verdict = judged(MISROUTED, decision=decision)

    assert verdict is not None
    assert (verdict.label, verdict.right_slot) == (to_blame, right_slot)


@pytest.mark.parametrize("decision", ["rule", "explored"])
def test_a_right_route_leaves_the_adapter_to_blame_whoever_chose_it(decision: str) -> None:
    assert label(FAILED, decision=decision) == "adapter:L2"


def test_a_word_lost_by_the_base_model_s_summary_is_no_slot_s() -> None:
    said = hop(slot="base", model="base", served_name="base")
    earlier = turn_of([said], turn_id="t0", request="My cat is Biscuit.", decision="unsure")
    edit = signal("edit", None, correction=says('print("Biscuit")'))

    assert label(edit, context=Context((earlier,))) == "summary"
