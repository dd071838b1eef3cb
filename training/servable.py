"""What an engine can load: the rules of vLLM's and PEFT's loaders, checked before publishing.

In: a PEFT folder and the base's. Out: nothing, or `AdapterNotServable` with the first thing
that is wrong. Engines are silent about some of it (module names that do not match serve the
bare base), so it is checked here. Free of torch.
"""

import json
import re
from pathlib import Path
from typing import Any

from serving.errors import AdapterNotServable
from serving.tensors import (
    BadTensorFile,
    Tensor,
    folder_tensors,
    not_finite,
    read_header,
)

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
MAX_RANK = 512

_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
_LORA_TENSOR = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
_FORBIDDEN = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "alora_invocation_tokens",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
    "trainable_token_indices",
    "target_parameters",
)
"""Settings that vLLM 0.32 rejects (`lora/peft_helper.py`) or ignores while PEFT does not."""


class UnsafeAdapter(AdapterNotServable):
    """The folder holds pickled weights, which run code when loaded."""


def check_servable(path: Path, base: Path | None = None) -> None:
    """Check a PEFT folder against what vLLM's and PEFT's loaders take, before any digest.

    Source: vLLM 0.32 `lora/peft_helper.py` and `lora/lora_model.py`.

    Raises:
        UnsafeAdapter: if there is a pickle file in it.
        AdapterNotServable: naming the first thing that is wrong.
    """
    if not path.is_dir():
        raise AdapterNotServable(
            f"No adapter folder at {str(path)!r}. Run 'flows adapters list' for those there are."
        )
    pickles = sorted(f.name for f in path.rglob("*") if f.suffix.lower() in _PICKLE_SUFFIXES)
    if pickles:
        raise UnsafeAdapter(
            f"Adapter {str(path)!r} holds the pickle file {pickles[0]!r}, which runs code when "
            f"loaded; only {WEIGHTS_NAME} is allowed. Save it with safe_serialization=True."
        )
    config = read_config(path)
    _check_config(path, config)
    tensors = read_weights(path)
    modules = _check_tensors(path, config, tensors)
    if base is not None:
        _check_modules(path, modules, tensors, base)
    for name in not_finite(tensors):
        raise refused(path, f"tensor {name!r} has a value that is not finite")


def refused(path: Path, reason: str) -> AdapterNotServable:
    """Return the error that refuses an adapter for one reason."""
    return AdapterNotServable(
        f"Adapter {str(path)!r} cannot be served: {reason}. "
        "Train it again with 'flows run train' or import a plain LoRA in safetensors form."
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return an adapter folder's `adapter_config.json`; AdapterNotServable if there is none."""
    try:
        config = json.loads((path / CONFIG_NAME).read_bytes())
    except FileNotFoundError as error:
        raise refused(path, f"{CONFIG_NAME} is missing") from error
    except ValueError as error:
        raise refused(path, f"{CONFIG_NAME} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise refused(path, f"{CONFIG_NAME} holds a {type(config).__name__}, not an object")
    return config


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return where an adapter's tensors lie; AdapterNotServable if there are none."""
    try:
        return read_header(path / WEIGHTS_NAME)
    except FileNotFoundError as error:
        raise refused(path, f"{WEIGHTS_NAME} is missing") from error
    except BadTensorFile as error:
        raise refused(path, str(error)) from error


def _check_config(path: Path, config: dict[str, Any]) -> None:
    kind, bias, init = config.get("peft_type"), config.get("bias"), config.get("init_lora_weights")
    if kind != "LORA":
        raise refused(path, f"peft_type is {kind!r}, must be 'LORA'")
    if bias not in (None, "none"):
        raise refused(path, f"bias is {bias!r}, must be 'none'")
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        raise refused(path, f"init_lora_weights {init!r} changes the base; use true")
    for key in _FORBIDDEN:
        if config.get(key):
            raise refused(path, f"{key} is {config[key]!r}; only plain LoRA is allowed")
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
            raise refused(path, f"rank is {rank!r}, must be 1 to {MAX_RANK}")


def _check_tensors(
    path: Path, config: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Return the A and B of each module, checked against each other and the ranks allowed."""
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _LORA_TENSOR.match(name)
        if match is None:
            raise refused(path, f"tensor {name!r} is not a module's lora_A or lora_B weight")
        if match["module"].endswith(("lm_head", "embed_tokens")):
            raise refused(path, f"tensor {name!r} adapts the vocabulary, which engines drop")
        modules.setdefault(match["module"], {})[match["side"]] = tensor
    if not modules:
        raise refused(path, f"{WEIGHTS_NAME} holds no tensors")
    for module, sides in modules.items():
        shapes = [sides[s].shape if s in sides else None for s in "AB"]
        a, b = shapes
        if a is None or b is None or len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise refused(path, f"module {module!r} has lora_A {a} and lora_B {b}")
        rank = _rank_of(config, module)
        if a[0] != rank:
            raise refused(path, f"module {module!r} has rank {a[0]}, the config says {rank}")
    return modules


def _rank_of(config: dict[str, Any], module: str) -> int:
    for pattern, rank in (config.get("rank_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return int(rank)
    return int(config["r"])


def _check_modules(
    path: Path, modules: dict[str, dict[str, Tensor]], tensors: dict[str, Tensor], base: Path
) -> None:
    """An engine serves the bare base, silently, for modules whose names it does not know."""
    base_tensors = folder_tensors(base)
    for module, sides in modules.items():
        weight = base_tensors.get(f"{module}.weight")
        if weight is None:
            raise refused(path, f"the base has no module {module!r}")
        fits = (sides["B"].shape[0], sides["A"].shape[1])
        if weight.shape != fits:
            raise refused(path, f"module {module!r} is {fits}, in the base {weight.shape}")
