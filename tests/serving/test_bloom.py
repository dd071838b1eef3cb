"""Proves that the filter never denies a key that was added, and seldom affirms another."""

from serving.bloom import BloomFilter


def test_an_added_key_is_never_denied_and_few_others_are_affirmed() -> None:
    added = [f"node:{number}".encode() for number in range(4096)]
    others = [f"asked:{number}".encode() for number in range(4096)]
    full = BloomFilter(bits_log2=16)  # 16 bits a key
    for key in added:
        full.add(key)

    assert all(key in full for key in added)
    assert sum(key in full for key in others) < len(others) * 0.01


def test_an_empty_filter_has_nothing() -> None:
    assert b"node:1" not in BloomFilter(bits_log2=10)
