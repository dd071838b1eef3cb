"""Hold one conversation of the living suite with a model, in the view that its slot would have.

In: a scenario, an engine and a served name. Out: all of the model's messages and the score of
the home that they left. The user's lines are fixed, reminders come only where they are needed,
and tools answer by the state of the home, so the same answers give the same conversation.
"""

from collections.abc import Awaitable, Callable

from promotion.suites.living.home import Home
from promotion.suites.living.scenario import Line, Scenario
from promotion.suites.suite import Played
from serving.engine import ChatRequest, ChatResult, Engine
from serving.errors import EngineRefused
from serving.own_view import Conversation, Entry, own_view
from serving.records import Message
from serving.slots import Profile

MAX_CALLS = 8
"""Engine calls in one turn; what a model still wants to do then waits for the user's next line."""
MAX_VIEW_TOKENS = 1600
"""A conversation is over when its view is longer: a server with a context of 2,048 must hold it."""

_BAD_REQUEST = 400


async def hold(
    profile: Profile,
    slot: str,
    scenario: Scenario,
    engine: Engine,
    model: str,
    temperature: float,
    seed: int | None,
) -> Played:
    """Say the user's lines, carry out what the model calls, and judge the home at the end."""

    async def ask(messages: tuple[Message, ...]) -> ChatResult:
        request = ChatRequest(
            model=model,
            messages=messages,
            tools=scenario.tools,
            max_tokens=profile.max_answer_tokens,
            temperature=temperature,
            seed=seed,
            affinity=scenario.scenario_id,
        )
        return await engine.chat(request)

    home = scenario.home()
    conversation = Conversation(scenario.scenario_id)
    results: list[ChatResult] = []
    for line in scenario.lines:
        home.set(line.moves or {})
        if _superfluous(line, home):
            continue
        view = own_view(profile, conversation, slot, line.text)
        said = await _turn(home, ask, view, results)
        if said is None or _long(results[-1]):
            break
        messages = (Message(role="user", content=line.text), *said)
        conversation.timeline.append(Entry(slot, messages, summary=""))
    return Played(
        answers=tuple(result.message for result in results),
        check=scenario.judge(home),
        completion_tokens=sum(result.completion_tokens for result in results),
    )


async def _turn(
    home: Home,
    ask: Callable[[tuple[Message, ...]], Awaitable[ChatResult]],
    view: tuple[Message, ...],
    results: list[ChatResult],
) -> list[Message] | None:
    """Let the model answer one line; return what was said, None where it cannot go on."""
    said: list[Message] = []
    for _ in range(MAX_CALLS):
        try:
            result = await ask((*view, *said))
        except EngineRefused as refusal:
            # Servers refuse to render some of what a model has written, such as a call whose
            # arguments are no object. That is the model's doing, unless it has written nothing.
            if refusal.status == _BAD_REQUEST and results:
                return None
            raise
        results.append(result)
        said += [result.message, *_carried_out(home, result.message)]
        if not result.message.tool_calls or _long(result):
            break
    return said


def _superfluous(line: Line, home: Home) -> bool:
    return line.unless is not None and home.holds(line.unless)


def _carried_out(home: Home, answer: Message) -> list[Message]:
    return [
        Message(role="tool", content=home.call(call), tool_call_id=call.id)
        for call in answer.tool_calls
    ]


def _long(result: ChatResult) -> bool:
    return result.prompt_tokens + result.completion_tokens > MAX_VIEW_TOKENS
