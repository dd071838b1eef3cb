"""How two versions of adapters differ: origin, configuration, data, metrics, gate, weights.

In: two registered versions and the home they lie in. Out: rows of `what`, both values, and for
weights the distance of each module's change to the base, relative to the first one's norm.

For a LoRA the change is `s B A` with `s` as PEFT scales it; its Frobenius norms and inner
products are those of matrices of the rank's size (`<BA, B'A'> = sum((B^T B') * (A A'^T))`), so no
matrix of the model's size is made.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from promotion.gate import GateReport
from promotion.state import RegisteredVersion
from serving.errors import MolError
from serving.records import Record
from serving.tensors import Tensor, read_header
from training.servable import CONFIG_NAME, read_config, read_weights

Floats = npt.NDArray[np.float64]
_LORA = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")


class NotComparable(MolError, ValueError):
    """Two versions have nothing in common that could differ."""


class Difference(Record):
    """One thing in which two versions differ."""

    about: str
    """`version`, `config`, `dataset`, `metrics`, `gate` or `weights`."""
    what: str
    a: Any
    b: Any


class ModuleDistance(Record):
    """How far one module's change to the base moved."""

    module: str
    a: float
    """Frobenius norm of the first version's change to the base; 0 where it has none."""
    b: float
    distance: float
    """Norm of the difference of the two changes."""

    @property
    def relative(self) -> float | None:
        """Distance in norms of the first version's change; None where that has none."""
        if not self.a:
            return None if self.distance else 0.0
        return self.distance / self.a


def differences(
    home: Path,
    a: RegisteredVersion,
    b: RegisteredVersion,
    reports: Mapping[str, GateReport],
) -> list[Difference]:
    """Return in what two versions differ, apart from their weights.

    `reports` are the newest about each of them that the gate stands by, by digest.

    Raises:
        NotComparable: if both are the same version.
    """
    if a.digest == b.digest:
        raise NotComparable(f"{a.name!r} and {b.name!r} are one version. Name two.")
    pairs: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "version": (_origin(a), _origin(b)),
        "config": (_config(home, a), _config(home, b)),
        "dataset": (_dataset(home, a), _dataset(home, b)),
        "metrics": (a.metrics, b.metrics),
        "gate": (_gate(reports.get(a.digest)), _gate(reports.get(b.digest))),
    }
    return [
        Difference(about=about, what=what, a=left.get(what), b=right.get(what))
        for about, (left, right) in pairs.items()
        for what in dict.fromkeys([*left, *right])
        if left.get(what) != right.get(what)
    ]


def weight_distances(
    home: Path, a: RegisteredVersion, b: RegisteredVersion
) -> list[ModuleDistance]:
    """Return the distance of each module's weights, the farthest first.

    Raises:
        AdapterNotServable: if a folder is missing or damaged.
    """
    left, right = _factors(home / a.path), _factors(home / b.path)
    found = []
    for module in sorted({*left, *right}):
        own, other = left.get(module), right.get(module)
        a2 = _inner(own, own)
        b2 = _inner(other, other)
        squared = a2 + b2 - 2 * _inner(own, other)
        found.append(
            ModuleDistance(
                module=module, a=math.sqrt(a2), b=math.sqrt(b2), distance=math.sqrt(max(squared, 0))
            )
        )
    return sorted(found, key=lambda row: (-row.distance, row.module))


def _origin(version: RegisteredVersion) -> dict[str, Any]:
    names = ("slot", "base_digest", "manifest_digest", "run_key", "signer")
    return {name: getattr(version, name) for name in names}


def _config(home: Path, version: RegisteredVersion) -> dict[str, Any]:
    folder = home / version.path
    return read_config(folder) if (folder / CONFIG_NAME).is_file() else {}


def _dataset(home: Path, version: RegisteredVersion) -> dict[str, Any]:
    from curation.manifest import find_manifest

    manifest = find_manifest(home, version.manifest_digest) if version.manifest_digest else None
    if manifest is None:
        return {}
    return {"snapshot": manifest.snapshot_id, **manifest.splits, **manifest.mix}


def _gate(report: GateReport | None) -> dict[str, Any]:
    return {} if report is None else report_figures(report)


def report_figures(report: GateReport) -> dict[str, Any]:
    """Return a report's verdict and the challenger's score on each suite, 0 to 1."""
    results = (report.primary, *report.guards)
    scores = {r.suite: r.comparison.mean_challenger for r in results if r.comparison}
    return {"verdict": report.verdict, **scores}


def _factors(folder: Path) -> dict[str, tuple[Floats, Floats]]:
    """Return each module's `s B` and `A`; a router head's layers as `W` and the identity."""
    if not (folder / CONFIG_NAME).is_file():
        files = sorted(folder.glob("*.safetensors"))
        layers = {name: t for file in files for name, t in read_header(file).items()}
        matrices = {name: np.atleast_2d(_array(tensor)) for name, tensor in layers.items()}
        return {name: (matrix, np.eye(matrix.shape[1])) for name, matrix in matrices.items()}
    config, sides = read_config(folder), dict[str, dict[str, Floats]]()
    for name, tensor in read_weights(folder).items():
        match = _LORA.match(name)
        if match is not None:
            sides.setdefault(match["module"], {})[match["side"]] = _array(tensor)
    return {
        module: (_scale(config, module, pair["A"].shape[0]) * pair["B"], pair["A"])
        for module, pair in sides.items()
        if pair.keys() == {"A", "B"}
    }


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return PEFT's factor: alpha over the rank, or over its root with rsLoRA."""
    patterns = config.get("alpha_pattern") or {}
    special = (v for p, v in patterns.items() if re.match(rf"(.*\.)?({p})$", module))
    alpha = float(next(special, config.get("lora_alpha") or rank))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _inner(a: tuple[Floats, Floats] | None, b: tuple[Floats, Floats] | None) -> float:
    """Return the Frobenius inner product of two changes; shapes that differ share nothing."""
    if a is None or b is None:
        return 0.0
    if (a[0].shape[0], a[1].shape[1]) != (b[0].shape[0], b[1].shape[1]):
        return 0.0
    return float(np.sum((a[0].T @ b[0]) * (a[1] @ b[1].T)))


def _array(tensor: Tensor) -> Floats:
    with tensor.path.open("rb") as file:
        file.seek(tensor.start)
        raw = file.read(tensor.size_bytes)
    if tensor.dtype == "BF16":  # the upper half of a float32
        wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64).reshape(tensor.shape)
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[tensor.dtype]
    return np.frombuffer(raw, kind).astype(np.float64).reshape(tensor.shape)
