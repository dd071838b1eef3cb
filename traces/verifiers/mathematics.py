r"""Write the mathematics of an answer in plain characters, as far as it says one number.

In: a text with LaTeX or without. Out: `3/4` for `\frac{3}{4}`, `1,234` for `1{,}234`, the words of
`\text{...}`, units without their exponents. What is not read (`\sqrt{2}`, `\pi`, `\frac{a}{b}`) is
one `UNREAD`, so that no digit of it is taken for the number. Nothing is computed: an answer comes
from a model, and what a computer algebra evaluates may take for ever.
"""

import re

UNREAD = "\ufffc"
"""Stands for what may be a number and is not read."""
_SPACES = {"!": "", ",": "\u2009", ":": " ", ";": " ", " ": " ", "\\": "\n"}
_SIGNS = {
    **dict.fromkeys(("left", "right", "big", "bigl", "bigr", "Big", "displaystyle"), ""),
    **dict.fromkeys(("quad", "qquad"), " "),
    **dict.fromkeys(("times", "cdot"), "\u00d7"),
    **dict.fromkeys(("approx", "simeq", "equiv"), "\u2248"),
    **dict.fromkeys(("circ", "degree"), "\u00b0"),
    **dict.fromkeys(
        ("therefore", "because", "implies", "Rightarrow", "rightarrow", "to", "item", "ldots",
         "dots", "hline", "newline"), " ; ",
    ),
    "div": "\u00f7", "pounds": "\u00a3", "percent": "%",
}  # fmt: skip
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)|([^A-Za-z]))")
_BLOCK = re.compile(r"\\(?:begin|end)\s*\{[^{}\\]{0,40}\}")
_WORDS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mbox|emph|bm|boldsymbol"
    r"|operatorname|underline|boxed)\s*\{([^{}\\]{0,200})\}"
)
_GROUP = r"\{\s*([-\u2212]?[\d.,]{1,40})\s*\}|(\d)"
_FRACTION = re.compile(rf"\\[dtc]?frac\s*(?:{_GROUP})\s*(?:{_GROUP})")
_BOX = re.compile(r"\\boxed\s*(?=\{)")
_POWER = r"\^\s*(?:\{\s*[-+\u2212]?\s*\d{1,3}\s*\}|[-+\u2212]?\d{1,3})"
_PLAIN = (
    (re.compile(r"\{([,.])\}"), r"\1"),
    (re.compile(r"\^\s*(?:\{\s*(\u00b0|[a-z]{2})\s*\}|(\u00b0))"), r"\1\2"),
    (re.compile(r"(?<=[A-Za-z])_(?:\{[^{}]{0,40}\}|\d+)"), ""),
    (re.compile(rf"([^\W\d_]) ?{_POWER}"), r"\1"),
    (re.compile(r"\)\s{0,2}\^\s{0,2}(?:\{[^{}]{0,40}\}|[-+]?\w)"), ")" + UNREAD),
    (re.compile(r"\^\{\s*([-+\u2212]?\d{1,9})\s*\}"), r"^\1"),
    (
        re.compile(r"\b(?:sqrt|log|ln|exp|sin|cos|tan)\(|\bpi\b|[\u221a\u221b\u03c0\u00b1\u221e]"),
        UNREAD,
    ),
    (re.compile(r"([=\u2248(])[^\S\n]?([-\u2212])[^\S\n](?=[\d.$])"), r"\1\2"),
)
"""What is left once there are no commands, in this order."""


def boxed(text: str) -> str | None:
    r"""Return what the last `\boxed{...}` holds, `UNREAD` if it never ends; None without one."""
    begins = [box.end() for box in _BOX.finditer(text)]
    if not begins:
        return None
    end = _ends(text).get(begins[-1])
    return UNREAD if end is None else text[begins[-1] + 1 : end]


def plain(text: str) -> str:
    """Return a text without LaTeX; `UNREAD` for what has no plain form here."""
    if "\\" in text:
        text = _COMMAND.sub(_sign, _BLOCK.sub(" ; ", text))
        for _ in range(2):  # words in bold are one in the other
            text = _WORDS.sub(r" \1 ", text)
        text = _without_commands(_FRACTION.sub(_fraction, text))
    for form, instead in _PLAIN:
        text = form.sub(instead, text)
    return text


def _sign(command: re.Match[str]) -> str:
    name, character = command.groups()
    if name is not None:
        return _SIGNS.get(name, command[0])
    if character in "{}":
        return command[0]
    if character.isalnum():
        return UNREAD + character
    return _SPACES.get(character, character if character in "$%#&_" else " ")


def _fraction(found: re.Match[str]) -> str:
    upper, under = found[1] or found[2], found[3] or found[4]
    text, start, end = found.string, found.start(), found.end()
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    left, right = " " * before.isalnum(), " " * after.isdecimal()
    return f"{left}{upper}/{under}{right}"


def _without_commands(text: str) -> str:
    ends, parts, at = _ends(text), [], 0
    for command in _COMMAND.finditer(text):
        if command.start() < at:
            continue
        parts += [text[at : command.start()], UNREAD]
        at = command.end()
        while at in ends:
            at = ends[at] + 1
    return "".join((*parts, text[at:]))


def _ends(text: str) -> dict[int, int]:
    """Return where each brace that is closed is closed."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for found in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}" and opened:
            ends[opened.pop()] = found.start()
    return ends
