"""Proves that the living suite measures what it says: who fails where, and for what.

Policies are engines that act through `Engine.chat` with the suite's own tools; the home, the
conversation and the scoring are the real ones. No model runs.
"""

import asyncio
import functools
import re
from collections import Counter

import pytest
from living_policies import Additive, Credulous, Deaf, DoesNothing, Hasty, Insistent, Oracle, Stale

from promotion.suites.living.compose import LINES
from promotion.suites.living.deeds import SUBJECTS
from promotion.suites.living.scenario import Scenario
from promotion.suites.living.scenarios import TEMPLATES, living_suite, make_scenarios
from promotion.suites.sets import divide
from promotion.suites.suite import Played
from serving.errors import EngineRefused
from serving.slots import load_profile

PROFILE = load_profile()
SEEDS = range(3)


@functools.cache
def outcomes(policy: type[Oracle], seed: int = 0) -> list[tuple[Scenario, Played]]:
    items = living_suite(PROFILE, "L1", seed).items
    scenarios = make_scenarios(seed)

    async def play() -> list[Played]:
        return [
            await item.run(policy(scenario), "L1")  # type: ignore[arg-type]
            for item, scenario in zip(items, scenarios, strict=True)
        ]

    return list(zip(scenarios, asyncio.run(play()), strict=True))


def failed(policy: type[Oracle], seed: int = 0) -> set[str]:
    return {s.scenario_id for s, played in outcomes(policy, seed) if not played.check.passed}


def having(change: str, seed: int = 0) -> set[str]:
    return {s.scenario_id for s in make_scenarios(seed) if change in s.changes}


def with_effect(*effects: str, seed: int = 0) -> set[str]:
    return {
        s.scenario_id for s in make_scenarios(seed) if any(f.effect in effects for f in s.faults)
    }


def named(pattern: str, seed: int = 0) -> set[str]:
    return {s.scenario_id for s in make_scenarios(seed) if re.search(pattern, s.template)}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_oracle_scores_everything(seed: int) -> None:
    wrong = [(s.template, p.check.detail, s.lines) for s, p in outcomes(Oracle, seed)
             if p.check.value != 1.0 or not p.check.passed]  # fmt: skip

    assert wrong == []


@pytest.mark.parametrize("seed", SEEDS)
def test_doing_nothing_scores_nothing(seed: int) -> None:
    assert {played.check.value for _, played in outcomes(DoesNothing, seed)} == {0.0}


@pytest.mark.parametrize("seed", SEEDS)
def test_never_looking_fails_wherever_the_state_moved_or_a_tool_lies(seed: int) -> None:
    moved, lies = having("state", seed), with_effect("claimed", seed=seed)

    assert moved | lies <= failed(Hasty, seed)
    assert failed(Hasty, seed) <= moved | lies | named("-unknown$", seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_old_readings_fail_exactly_where_the_state_moved_after_it_was_read(seed: int) -> None:
    never_read = named("-(unread|still)$", seed)

    assert failed(Stale, seed) == having("state", seed) - never_read


@pytest.mark.parametrize("seed", SEEDS)
def test_trust_in_every_result_fails_exactly_where_a_tool_says_that_it_did_not(seed: int) -> None:
    said_nothing_of_it = with_effect("done", "claimed", "warned", seed=seed)

    assert failed(Credulous, seed) == having("tool", seed) - said_nothing_of_it


def test_trying_again_blindly_fails_where_it_was_done_already_or_cannot_be_done() -> None:
    hopeless = named("-(broken|refused)$")

    assert failed(Insistent) == with_effect("done", "warned") | hopeless


@pytest.mark.parametrize("seed", SEEDS)
def test_taking_nothing_back_fails_wherever_a_deed_must_not_stay(seed: int) -> None:
    assert named("^wish.*-(target|one-of-two|last-undone|taken-back)", seed) <= failed(
        Additive, seed
    )
    assert not failed(Additive, seed) & named("-(added|same|planned)", seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_not_hearing_the_second_wish_fails_wherever_there_is_one(seed: int) -> None:
    assert having("wish", seed) <= failed(Deaf, seed)


def test_a_side_effect_costs_what_a_goal_brings() -> None:
    grades = {p.check.value for policy in (Credulous, Deaf, Stale) for _, p in outcomes(policy)}
    besides = [p.check for _, p in outcomes(Additive) if "besides" in p.check.detail]

    assert {0.0, 0.5, 1.0} <= grades
    assert len(besides) > 50
    assert not any(check.passed or check.value == 1.0 for check in besides)


def test_every_template_is_a_cluster_and_every_kind_of_change_has_many() -> None:
    scenarios = make_scenarios(0)
    kinds = Counter("+".join(sorted(template.changes)) for template in TEMPLATES)

    assert len(TEMPLATES) == len({template.label for template in TEMPLATES}) == 337
    assert {s.template for s in scenarios} == {template.label for template in TEMPLATES}
    assert len({s.scenario_id for s in scenarios}) == len(scenarios) == 674
    assert kinds == {
        "wish": 122, "tool": 76, "tool+wish": 75, "state": 36, "state+tool": 21, "state+wish": 7
    }  # fmt: skip
    assert {template.subject for template in TEMPLATES} == set(SUBJECTS)
    assert min(Counter(template.subject for template in TEMPLATES).values()) == 30


def test_the_sealed_set_has_the_clusters_to_exclude_three_points_in_three_attempts() -> None:
    suite = living_suite(PROFILE, "L1", 0)

    assert len({item.cluster for item in divide(suite).sealed.items}) >= 187


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_conversations_begin_alike_and_nobody_repeats_a_line(seed: int) -> None:
    scenarios = make_scenarios(seed)

    assert len({s.lines[0].text for s in scenarios}) == len(scenarios)
    assert all(len({line.text for line in s.lines}) == len(s.lines) for s in scenarios)


@pytest.mark.parametrize("seed", SEEDS)
def test_lines_are_whole(seed: int) -> None:
    left_over = re.compile(r"[{}_<>]|  |^\s|\s$|[?!]\.|[^.]\.\.(?!\.)|None")
    lines = [line.text for s in make_scenarios(seed) for line in s.lines]

    assert [text for text in lines if left_over.search(text)] == []


def test_every_line_is_said_by_some_seed_and_no_two_are_the_same() -> None:
    lines = [text for table in LINES.values() for texts in table.values() for text in texts]
    said = " ".join(
        line.text for seed in range(12) for s in make_scenarios(seed) for line in s.lines
    )
    says = " ".join(f.says for seed in range(12) for s in make_scenarios(seed) for f in s.faults)

    assert len(set(lines)) == len(lines)
    for text in lines:
        assert re.search(_filled(text), said) or text in says, text


def _filled(text: str) -> str:
    parts = re.split(r"\{\w+\}", text)
    return ".{1,16}?".join(map(re.escape, parts))


def test_what_a_solution_does_can_be_known_from_what_was_said_and_read() -> None:
    class Traced(Oracle):
        async def chat(self, request, on_delta=None):
            result = await super().chat(request, on_delta)
            heard = " ".join(m.content for m in request.messages if m.role in ("user", "tool"))
            for value in (self.last or ("", {}))[1].values():
                if not re.search(rf"\b{re.escape(str(value))}\b", heard, re.IGNORECASE):
                    guessed.append((scenario.template, value, heard))
            return result

    guessed: list[tuple[str, object, str]] = []
    items = living_suite(PROFILE, "L1", 0).items
    for item, scenario in zip(items, make_scenarios(0), strict=True):
        asyncio.run(item.run(Traced(scenario), "L1"))  # type: ignore[arg-type]

    # Some degrees more than what was read, and the opposite of it.
    guessed = [g for g in guessed if not re.search("-(relative|toggled)", g[0])]
    assert guessed == []


def test_the_same_seed_gives_the_same_conversations() -> None:
    first = living_suite(PROFILE, "L1", 0)

    assert living_suite(PROFILE, "L1", 0).digest == first.digest
    other = PROFILE.model_copy(update={"max_answer_tokens": PROFILE.max_answer_tokens + 1})
    assert living_suite(other, "L1", 0).digest != first.digest
    assert living_suite(PROFILE, "L1", 1).digest != first.digest
    assert [p for _, p in outcomes.__wrapped__(Stale)] == [p for _, p in outcomes(Stale)]


def test_a_model_sees_its_own_past_and_only_the_tools_it_may_use() -> None:
    scenario = next(s for s in make_scenarios(0) if s.template == "state-wish-heating-relative")
    engine = Oracle(scenario)
    item = next(i for i in living_suite(PROFILE, "L1", 0).items if i.cluster == scenario.template)
    asyncio.run(item.run(engine, "L1@0"))  # type: ignore[arg-type]

    said = [line.text for line in scenario.lines]
    last = engine.asked[-1]
    assert last.model == "L1@0"
    assert [m.content for m in last.messages if m.role == "user"] == said
    assert last.messages[0].content == PROFILE.slot("L1").system
    assert [t["function"]["name"] for t in last.tools] == [
        "set_heating", "get_heating", "add_to_list", "read_list", "remove_from_list"
    ]  # fmt: skip
    for earlier, later in zip(engine.asked, engine.asked[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages


def test_a_conversation_that_grows_too_long_ends_and_is_scored() -> None:
    class Endless(Oracle):
        async def chat(self, request, on_delta=None):
            result = await super().chat(request, on_delta)
            return type(result)(
                result.response_id, request.model, result.message, "length", 1590, 72
            )

    scenario = make_scenarios(0)[0]
    item = living_suite(PROFILE, "L1", 0).items[0]
    played = asyncio.run(item.run(Endless(scenario), "L1"))  # type: ignore[arg-type]

    assert len(played.answers) == 1
    assert played.check.passed is False


def test_a_reminder_comes_only_where_it_is_needed() -> None:
    scenario = next(s for s in make_scenarios(0) if s.template == "tool-light-fails")
    items = living_suite(PROFILE, "L1", 0).items
    item = next(item for item in items if item.cluster == scenario.template)
    heard: list[list[str]] = []
    for policy in (Oracle(scenario), Credulous(scenario)):
        asyncio.run(item.run(policy, "L1"))  # type: ignore[arg-type]
        heard.append([m.content for m in policy.asked[-1].messages if m.role == "user"])

    first, reminder = (line.text for line in scenario.lines)
    assert heard == [[first], [first, reminder]]
    assert item.further_texts == (reminder,)


def test_what_an_engine_refuses_to_go_on_with_is_over_but_not_what_it_never_took() -> None:
    class Refusing(Oracle):
        async def chat(self, request, on_delta=None):
            if len(self.asked) == self.takes:
                raise EngineRefused("arguments are no object (400)", self.status)
            return await super().chat(request, on_delta)

    scenario, item = make_scenarios(0)[0], living_suite(PROFILE, "L1", 0).items[0]

    def play(takes: int, status: int) -> Played:
        engine = Refusing(scenario)
        engine.takes, engine.status = takes, status
        return asyncio.run(item.run(engine, "L1"))  # type: ignore[arg-type]

    assert play(takes=1, status=400).check.passed is False
    for takes, status in ((0, 400), (1, 500), (0, 404)):
        with pytest.raises(EngineRefused):
            play(takes, status)
