"""Elements of JSON documents, one after another, from files larger than memory.

A document is an array, an object, or several of them in a row, on as many lines as it likes.
The standard decoder does the decoding; here is only where an element begins and ends, so that
an element keeps its exact bytes and a growing array is read on from where it ended.
(ijson streams too, but gives no positions, stops for good at a number it cannot hold, and
turns a lone surrogate into '?'.)
In: a stream. Out: pieces that cover every byte from the start on, up to what is unfinished.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from traces.importers.rows import LineRefused
from traces.sources.items import finite, has_surrogate
from traces.sources.source import MAX_LINE_BYTES, Corrupt, Piece, read_some

_CHUNK_BYTES = 1024 * 1024
BLANK = " \t\r\n\ufeff"
_CUT = 12
"""An error this near the end of what was read may be an unfinished number, literal or escape."""


class Decoded(NamedTuple):
    """A value, where its text ends, and whether it holds what is no JSON value."""

    value: Any
    end: int
    odd: bool


class Document:
    """The elements of a stream that stands at byte `start`, which is 0 or after an element."""

    def __init__(self, stream: BinaryIO, start: int = 0) -> None:
        self._stream = stream
        self._text = ""
        self._at = 0
        self._position = start
        self._inside = start > 0
        self._ended = False
        self._corrupt: str | None = None
        self._separator = ""
        # Bytes that are no UTF-8 survive as they are and are refused with their element.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.unfinished_bytes = 0
        """Bytes of a last element whose end is not written yet, once all pieces were taken."""

    def pieces(self) -> Iterator[Piece]:
        """Yield every element with what stands before it."""
        while (lead := self._skip()) is not None:
            piece = self._element(lead)
            if piece is None:
                break
            yield piece
        if self._corrupt is not None:
            refusal = LineRefused("corrupt_file", self._corrupt)
            yield Piece(self._position, b"", refusal=refusal)

    def _skip(self) -> int | None:
        """Return how many characters stand before the next element; None if there is none."""
        lead = 0
        while True:
            mark = self._mark(lead)
            if mark is None:
                return None
            if mark == "[" and not self._inside:
                self._inside = True
            elif mark == "]" and self._inside:
                self._inside = False
            elif mark not in BLANK and mark != ",":
                return lead
            lead += 1

    def _mark(self, lead: int) -> str | None:
        """Return the character after the lead; None at the end."""
        while self._at + lead >= len(self._text):
            if not self._read(_CHUNK_BYTES):
                return None
        return self._text[self._at + lead]

    def _element(self, lead: int) -> Piece | None:
        """Return the next element; None if the document ends within it."""
        found = self._value(lead)
        if isinstance(found, Decoded):
            return self._piece(lead, found)
        if self._ended and _torn(found, self._text):
            self.unfinished_bytes = len(_bytes(self._text[self._at + lead :]))
            return None
        return self._broken(lead, found)

    def _value(self, lead: int) -> Decoded | Exception:
        """Decode the value after the lead, reading on as far as it takes; or why it is none."""
        step = _CHUNK_BYTES
        while True:
            begin = self._at + lead
            found: Decoded | Exception
            try:
                found = self._decoded(begin)
            except (ValueError, RecursionError) as error:
                found = error
            else:
                # A number at the end of what was read may go on.
                if self._text[found.end - 1] in '}]"' or found.end < len(self._text):
                    return found
            room = MAX_LINE_BYTES - (len(self._text) - begin)
            if room <= 0 or not self._read(min(step, room)):
                return found
            step *= 2

    def _decoded(self, begin: int) -> Decoded:
        odd: list[str] = []
        try:
            decoder = json.JSONDecoder(parse_constant=odd.append, parse_float=finite)
            value, end = decoder.raw_decode(self._text, begin)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            # A number that Python does not take; the decoder has no need to.
            decoder = json.JSONDecoder(parse_constant=odd.append, parse_float=str, parse_int=str)
            value, end = decoder.raw_decode(self._text, begin)
            odd.append(str(error))
        return Decoded(value, end, bool(odd))

    def _piece(self, lead: int, found: Decoded) -> Piece:
        before = _bytes(self._text[self._at : self._at + lead])
        content = _bytes(self._text[self._at + lead : found.end])
        self._separator = before.decode("utf-8", "replace")
        # What is doubtful is decoded again by itself, and refused if it has to be.
        plain = not found.odd and not has_surrogate(content) and _is_utf8(content)
        value = found.value if plain else None
        return self._take(before, content, found.end, value=value, decoded=plain)

    def _broken(self, lead: int, failure: Exception) -> Piece:
        """Return what cannot be decoded, up to where the next element seems to begin.

        Elements that stand on lines of their own are found again; otherwise the rest is lost
        to the importer, but not to quarantine.
        """
        begin = self._at + lead
        end = len(self._text)
        if "\n" in self._separator:
            mark = self._separator + self._text[begin]
            found = self._text.find(mark, begin + 1)
            end = found if found >= 0 else end
        before = _bytes(self._text[self._at : begin])
        content = _bytes(self._text[begin:end])
        reason, why = "not_json", str(failure)
        if not self._ended and end == len(self._text) and _torn(failure, self._text):
            reason, why = "too_long", f"more than {MAX_LINE_BYTES:,} bytes"
        return self._take(before, content, end, refusal=LineRefused(reason, why))

    def _take(self, before: bytes, content: bytes, end: int, **more: Any) -> Piece:
        piece = Piece(self._position, before + content, lead=len(before), **more)
        self._position += len(piece.raw)
        self._at = end
        return piece

    def _read(self, size: int) -> bool:
        """Read on; return whether there was more."""
        if self._ended:
            return False
        try:
            chunk = read_some(self._stream, size)
        except Corrupt as error:
            chunk, self._corrupt = b"", str(error)
        if not chunk:
            self._ended = True
            self._text += self._utf8.decode(b"", final=True)
            return False
        self._text = self._text[self._at :] + self._utf8.decode(chunk)
        self._at = 0
        return True


def _torn(failure: Exception, text: str) -> bool:
    """Return whether the text may only lack its end."""
    if not isinstance(failure, json.JSONDecodeError):
        return False
    return failure.msg.startswith("Unterminated") or failure.pos >= len(text) - _CUT


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_utf8(content: bytes) -> bool:
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
