"""Write out what Unicode's compatibility form (NFKC) would run together: 10² is not 102.

In: a text as a model wrote it. Out: the same with raised digits after a number as a power (`10^2`),
and with a fraction of one character as two numbers, apart from what stands before (`1 1/2`).
"""

import re
import unicodedata

UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters, in a class of `re`, of scripts without spaces between their words."""
_RAISED = re.compile("(?<=[\\d)])[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207f]+")
_FRACTION = re.compile(r"(?P<before>\d?)(?P<fraction>[\u00bc-\u00be\u2150-\u215e\u2189])")


def written_out(text: str) -> str:
    """Return a text in which NFKC makes no number of what were two."""
    powers = _RAISED.sub(lambda raised: "^" + _plain(raised[0]), text)
    return _FRACTION.sub(_apart, powers).replace("\u2044", "/")


def _apart(found: re.Match[str]) -> str:
    return found["before"] + (" " if found["before"] else "") + _plain(found["fraction"])


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2212", "-")
