"""Tool calls and their results in a request: who answers what, and which tools there are."""

from collections.abc import Sequence
from typing import Any

from serving.protocols.refusals import refused, shown


class CallLedger:
    """Checks, message by message, that every tool result answers one open call.

    Ids may come back in a later assistant message: small engines count from zero in
    each.
    """

    def __init__(self, *, may_answer_unseen: bool = False) -> None:
        """`may_answer_unseen`: the calls may be in an earlier answer that the server keeps."""
        self._in_message: set[str] = set()
        self._open: set[str] = set()
        self._answered: set[str] = set()
        self._may_answer_unseen = may_answer_unseen

    def new_message(self) -> None:
        """Note that the calls that follow are those of another assistant message."""
        self._in_message = set()

    def called(self, call_id: str, param: str) -> None:
        """Note a call.

        Raises:
            RequestInvalid: if its message has another of the same id.
        """
        if call_id in self._in_message:
            raise refused(param, f"is {shown(call_id)}, as is that of an earlier call.")
        self._in_message.add(call_id)
        self._open.add(call_id)
        self._answered.discard(call_id)

    def answered(self, call_id: str, param: str) -> None:
        """Note a tool result.

        Raises:
            RequestInvalid: if it answers no call, or one that has its result.
        """
        if call_id in self._answered:
            raise refused(
                param,
                f"is {shown(call_id)}, but that call has its result already; "
                "send one result for each call.",
            )
        if call_id not in self._open and not self._may_answer_unseen:
            raise refused(param, f"is {shown(call_id)}, which answers no earlier tool call.")
        self._open.discard(call_id)
        self._answered.add(call_id)


def chat_tool(
    name: str,
    description: str | None,
    parameters: dict[str, Any] | None,
    strict: bool | None = None,
) -> dict[str, Any]:
    """Return a tool in the form of chat completions."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def check_tools(tools: Sequence[dict[str, Any]], path: str) -> None:
    """Refuse two tools of one name; `path` has a place for the index.

    Raises:
        RequestInvalid: if there are two.
    """
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            raise refused(path.format(at), f"is {shown(name)}, as is that of an earlier tool.")
        seen.add(name)


def mode_choice(mode: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the `tool_choice` option for `auto`, `none` or `required`.

    Raises:
        RequestInvalid: if a call is demanded and there are no tools.
    """
    if tools:
        return {"tool_choice": mode}
    if mode == "required":
        raise refused("tool_choice", "demands a tool call, but there are no tools.")
    return {}  # engines refuse a choice among no tools


def named_choice(name: str, tools: Sequence[dict[str, Any]], param: str) -> dict[str, Any]:
    """Return the `tool_choice` option that makes the model call one tool.

    Raises:
        RequestInvalid: if it is not among `tools`.
    """
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        listed = shown(", ".join(names)) if names else "none"
        raise refused(param, f"is {shown(name)}, but the tools are {listed}.")
    return {"tool_choice": {"type": "function", "function": {"name": name}}}
