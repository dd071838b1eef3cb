"""A Bloom filter: says for certain that a key was never added.

Bloom, "Space/time trade-offs in hash coding with allowable errors" (1970). With 16 bits a key
and four probes it is wrong about one absent key in 400; fuller, more often; about a key that
was added, never.
"""

from hashlib import blake2b

_PROBES = 4
_PROBE_BYTES = 4


class BloomFilter:
    """A set that only grows and forgets its members' names; for one thread at a time."""

    def __init__(self, bits_log2: int = 25) -> None:
        """Have room for `2**bits_log2` bits, 32 at most; 25 are 4 MiB, for two million keys."""
        self._mask = (1 << bits_log2) - 1
        self._bits = bytearray(1 << (bits_log2 - 3))

    def add(self, key: bytes) -> None:
        """Take a key in."""
        for place in self._places(key):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: bytes) -> bool:
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in self._places(key))

    def _places(self, key: bytes) -> list[int]:
        digest = int.from_bytes(blake2b(key, digest_size=_PROBES * _PROBE_BYTES).digest(), "big")
        return [digest >> (8 * _PROBE_BYTES * n) & self._mask for n in range(_PROBES)]
