"""Train or holdout, dealt to whole groups of users and conversations.

Users who share a conversation form one group (union-find). Every user, and every
conversation with a turn whose user is unknown, votes by a stable hash; a group is held
out only if all of its votes say so.

What holds when more turns arrive:
- a group that gets no new member keeps its side;
- a group that grows keeps its side, or moves from holdout to train; never the other way.
So nothing that was trained on is ever held out later. It takes no account of order or
time, needs no stored state, and is the same for every slot of a lake.
"""

import hashlib

from curation.examples import Split

SPLIT_SALT = "split-salt"

_Node = tuple[str, str]


def votes_holdout(name: str, holdout_percent: int) -> bool:
    """Say whether a user's (or lone conversation's) hash falls in the held-out share."""
    digest = hashlib.sha256(f"{SPLIT_SALT}|{name}".encode()).hexdigest()
    return int(digest, 16) % 100 < holdout_percent


class Groups:
    """Users and conversations seen so far, joined where they meet."""

    def __init__(self) -> None:
        self._parent: dict[_Node, _Node] = {}
        self._voters: set[_Node] = set()

    def add(self, user: str | None, conversation_id: str) -> None:
        """Take note of one turn."""
        conversation = self._root(("conversation", conversation_id))
        if user is None:
            self._voters.add(("conversation", conversation_id))
            return
        self._voters.add(("user", user))
        self._parent[self._root(("user", user))] = conversation

    def sides(self, holdout_percent: int) -> dict[str, Split]:
        """Return the side of every conversation seen."""
        train_roots = {
            self._root(voter)
            for voter in self._voters
            if not votes_holdout(voter[1], holdout_percent)
        }
        return {
            name: "train" if self._root((kind, name)) in train_roots else "holdout"
            for kind, name in list(self._parent)
            if kind == "conversation"
        }

    def _root(self, node: _Node) -> _Node:
        self._parent.setdefault(node, node)
        root = node
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[node] != root:
            self._parent[node], node = root, self._parent[node]
        return root
