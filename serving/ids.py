"""Random ids that nobody can guess.

The kernel is asked once for many: a server makes several ids a request, and one call of
`os.urandom` each, as in `uuid.uuid4`, costs more than the rest of their making.
"""

import os

_IDS_AT_ONCE = 256
_BYTES = 16
_ready: list[str] = []


def new_id() -> str:
    """Return 32 hexadecimal digits, 128 random bits."""
    try:
        return _ready.pop()
    except IndexError:
        digits, size = os.urandom(_IDS_AT_ONCE * _BYTES).hex(), 2 * _BYTES
        made = [digits[n : n + size] for n in range(0, len(digits), size)]
        taken = made.pop()
        _ready.extend(made)
        return taken


# A child process must not hand out its parent's ids.
os.register_at_fork(after_in_child=_ready.clear)
