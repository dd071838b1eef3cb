"""Message histories as numbers, so that millions can be compared in little memory.

    message_label(message), label_sql(body, role)  a message, the same in Python and in SQL
    Histories().add(labels, said)                  a history -> the nodes of its prefixes

A prefix that ends in an assistant's message is a node of a tree, whose parent is the prefix
that ends in the assistant's message before. Calls of an agent repeat each other's histories,
so the tree grows by about one node a call. Numbers have 61 bits: among ten million prefixes
two share one with a chance of 1 to 40,000.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence

from serving.records import Message

NO_NODE = -1
_BREAK = "\x1f"
_SPACES = "".join(chr(code) for code in range(sys.maxunicode) if chr(code).isspace())


def text_hash(text: str) -> int:
    """Return the number that stands for a text; in SQL `text_hash_sql`."""
    digest = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "little")


def text_hash_sql(text: str) -> str:
    """Render `text_hash` of a SQL expression; no text is the empty one."""
    return f"md5_number_lower(coalesce({text}, ''))"


def message_label(message: Message) -> int:
    """Return what a message counts as in a history; odd if an assistant said it.

    Harnesses strip texts and give tool calls other ids, so neither counts.
    """
    calls = message.tool_calls
    parts = [message.role, message.content.strip()]
    parts += [_BREAK.join(c.name for c in calls), _BREAK.join(c.arguments for c in calls)]
    return text_hash(_BREAK.join(parts)) // 2 * 2 + (message.role == "assistant")


def label_sql(body: str, role: str) -> str:
    """Render `message_label` of SQL expressions for a message's JSON text and its role."""
    calls = ", ".join(
        f"coalesce(array_to_string(json_extract_string({body}, '$.tool_calls[*].{name}'),"
        f" chr(31)), '')"
        for name in ("name", "arguments")
    )
    spaces = " || ".join(f"chr({ord(space)})" for space in _SPACES)
    said = f"{role} || chr(31) || trim(json_extract_string({body}, '$.content'), {spaces})"
    # Most messages make no calls, and in JSON text a quote within a string never looks so.
    whole = (
        f"CASE WHEN contains({body}, '\"tool_calls\":[]') THEN {said} || chr(31) || chr(31)"
        f" ELSE concat_ws(chr(31), {said}, {calls}) END"
    )
    assistant = f"({role} = 'assistant')::INTEGER"
    return f"(md5_number_lower({whole}) // 2 * 2 + {assistant})::UBIGINT"


class Histories:
    """The prefixes of all histories that were added."""

    def __init__(self) -> None:
        self._nodes: dict[int, int] = {}
        self._parents = array("q")

    def add(self, labels: Iterable[int], said: int | None) -> tuple[int, int]:
        """Add the labels of a history without system messages, and of what was said to it.

        Returns:
            The node of the longest prefix that ends in an assistant's message before the
            end, and the node of the whole with what was said; `NO_NODE` where there is none.
        """
        running, node, before, last = 0, NO_NODE, NO_NODE, 0
        for last in labels:
            running = hash((running, last))
            if last % 2:
                before, node = node, self._node(running, node)
        if said is not None:
            return node, self._node(hash((running, said)), node)
        return (before if last % 2 else node), NO_NODE

    def prefixes(self, node: int) -> Iterator[int]:
        """Yield a node and all it extends, the longest first."""
        while node != NO_NODE:
            yield node
            node = self._parents[node]

    def freeze(self) -> None:
        """Forget what only `add` needs, most of the memory."""
        self._nodes.clear()

    def _node(self, running: int, parent: int) -> int:
        node = self._nodes.setdefault(running, len(self._parents))
        if node == len(self._parents):
            self._parents.append(parent)
        return node


def history_labels(messages: Sequence[Message]) -> list[int]:
    """Return the labels of a history; system messages do not count, harnesses change them."""
    return [message_label(m) for m in messages if m.role != "system"]
