"""Makes small runs of several agents for tests: who said what, as a turn and its hops.

Real records; the texts stand in for what agents write.
"""

from typing import Any

from serving.records import UNDATED, Hop, Message, ToolCall, Turn

REQUEST = "How many bridges cross the river Aare in the city of Bern?"
FAILED = "exitcode: 1 (execution failed)\nCode output: NameError: name 'page' is not defined"
EMPTY = "exitcode: 0 (execution succeeded)\nCode output: []"
PRINTED = "exitcode: 0 (execution succeeded)\nCode output: 18"
IDLE = "There is no code from the last message for me to execute."
CODE = "Let us look it up.\n```python\nprint(count(page))\n```\nPlease execute this code."
MORE_CODE = "Let us ask another source.\n```python\nfor row in table('aare'): print(row)\n```"
OPENING = f"Please solve this. {REQUEST} First find a list, then count the bridges in it."
AGREES = "I agree with what was said, and everybody seems to be content with it, so we are done."
FIGURES = (
    "According to the list, there are 18 bridges: Kirchenfeld 1883, Kornhaus 1898, Lorraine 1930,"
    " Nydegg 1844, Untertor 1489, Monbijou 1962, and 12 smaller ones that were built after 1950."
)


def run_of(*said: tuple[str, str], request: str = REQUEST) -> tuple[Turn, list[Hop]]:
    """Return the turn and the hops of a run, an entry a hop."""
    return turn_of(request), [
        hop_of(place, name, Message(role="assistant", content=text))
        for place, (name, text) in enumerate(said)
    ]


def hop_of(place: int, name: str, said: Message | None, **fields: Any) -> Hop:
    values: dict[str, Any] = {
        "source": "team", "conversation_id": "run", "turn_id": "run:0", "seq": place,
        "role": "answer", "model": name, "messages": (), "completion": said, "status": "ok",
        "started_at": UNDATED, "duration_s": 0.0,
    }  # fmt: skip
    return Hop(**{**values, **fields})


def turn_of(request: str = REQUEST) -> Turn:
    return Turn(
        turn_id="run:0", source="team", conversation_id="run", position=0, request=request,
        decision="direct", status="ok", hop_ids=(), started_at=UNDATED, duration_s=0.0,
    )  # fmt: skip


def call_of(name: str, arguments: str, call_id: str = "c1") -> Message:
    call = ToolCall(id=call_id, name=name, arguments=arguments)
    return Message(role="assistant", tool_calls=(call,))
