"""Read safetensors files as bytes: names, shapes, digests, finiteness. Free of torch.

Layout (github.com/huggingface/safetensors, README, "Format"): 8 bytes little-endian length
of the header, the header as JSON `{name: {dtype, shape, data_offsets}}`, then the data.
"""

import hashlib
import json
import math
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_HEADER_BYTES = 100_000_000

_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip

_FLOAT_BITS: dict[str, tuple[type[np.generic], int]] = {
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""Unsigned view and exponent mask: a float is not finite if its exponent is all ones."""


class BadTensorFile(ValueError):
    """A file is not in safetensors form."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies in its file."""

    path: Path
    dtype: str
    """As the format spells it: `F32`, `BF16`."""
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""
    size_bytes: int


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, without reading their data.

    Raises:
        FileNotFoundError: if there is no such file.
        BadTensorFile: if it is not a whole safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise BadTensorFile(f"{path.name} is not a safetensors file (bad header length)")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise BadTensorFile(f"{path.name} is not a safetensors file ({error})") from error
    if not isinstance(header, dict):
        raise BadTensorFile(f"{path.name} is not a safetensors file (header is not an object)")
    data_start = 8 + length
    header.pop("__metadata__", None)
    tensors = {name: _entry(path, name, raw, data_start) for name, raw in header.items()}
    if data_start + sum(t.size_bytes for t in tensors.values()) != size:
        raise BadTensorFile(f"{path.name} has {size} bytes, not what its header says; it is cut")
    return tensors


def folder_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of all safetensors files in a folder, by name."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_header(path)
    return tensors


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over name, type, shape and bytes of each tensor, in order of names."""
    return _digest((n, tensors[n].dtype, tensors[n].shape, data) for n, data in _data(tensors))


def arrays_digest(arrays: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """Return the digest that a file with these float32 arrays has."""
    return _digest(
        (name, "F32", array.shape, array.astype("<f4").tobytes())
        for name, array in sorted(arrays.items())
    )


def _digest(tensors: Iterable[tuple[str, str, tuple[int, ...], bytes]]) -> str:
    total = hashlib.sha256()
    for name, dtype, shape, data in tensors:
        head = json.dumps([name, dtype, shape], separators=(",", ":"))
        total.update(head.encode() + b"\0")
        total.update(data)
    return "sha256:" + total.hexdigest()


def not_finite(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names of tensors holding an infinity or NaN, or floats of an unknown kind."""
    for name, data in _data(tensors):
        dtype = tensors[name].dtype
        if dtype not in _FLOAT_BITS:
            yield name
            continue
        unsigned, mask = _FLOAT_BITS[dtype]
        bits = np.frombuffer(data, dtype=unsigned)
        if bool(((bits & mask) == mask).any()):
            yield name


def _data(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, bytes]]:
    """Yield each tensor's bytes in order of names; one tensor in memory at a time."""
    maps: dict[Path, mmap.mmap] = {}
    try:
        for name in sorted(tensors):
            tensor = tensors[name]
            if tensor.path not in maps:
                with tensor.path.open("rb") as file:
                    maps[tensor.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            yield name, maps[tensor.path][tensor.start : tensor.start + tensor.size_bytes]
    finally:
        for mapped in maps.values():
            mapped.close()


def _entry(path: Path, name: str, raw: Any, data_start: int) -> Tensor:
    try:
        dtype, shape = str(raw["dtype"]), tuple(int(n) for n in raw["shape"])
        start, end = (int(n) for n in raw["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadTensorFile(f"{path.name}: tensor {name!r} is not described") from error
    expected = _ITEM_BYTES.get(dtype, 0) * math.prod(shape)
    if start < 0 or min(shape, default=0) < 0 or end - start != expected:
        raise BadTensorFile(
            f"{path.name}: tensor {name!r} of type {dtype!r} and shape {shape} "
            f"takes {end - start} bytes"
        )
    return Tensor(path, dtype, shape, data_start + start, expected)
