"""Write down what a trained adapter answers to the probes, for the proof of what serves.

In: published adapters and the frozen base's folder. Out: `<home>/proofs/<digest>.json`, the
log-probabilities by transformers and PEFT, in float32 whatever the adapter was trained in.
Nothing of an engine's code takes part, or its faults would be in the yardstick. Torch is
imported late.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from serving.probes import SCORED_TOKENS, probe_token_ids
from serving.proof import Proof, ProofInvalid, Told, distance, read_proof, write_proof
from training.artifact import adapter_folder, base_digest, verify_adapter

DTYPE = "float32"
_Probes = tuple[tuple[int, ...], ...]


def ensure_proofs(home: Path, base: Path, digests: Iterable[str]) -> int:
    """Write the proofs of published adapters that have none for these probes; return how many.

    Raises:
        AdapterNotServable: if one is not what it was published as; no proof is written of that.
        BaseNotFound: if `base` is not a model folder.
        DiskFull: if one could not be stored.
    """
    wanted = list(dict.fromkeys(digests))
    if not wanted:
        return 0
    from training.train import load_tokenizer

    probes, base_id = probe_token_ids(load_tokenizer(base, None)), base_digest(base)
    lacking = [digest for digest in wanted if not _is_there(home, digest, base_id, probes)]
    if not lacking:
        return 0
    for digest in lacking:
        verify_adapter(adapter_folder(home, digest), base, base_id)
    model = _load(base)
    base_told, told = _told(model, probes), {}
    for digest in lacking:
        model, told[digest] = _adapted(model, adapter_folder(home, digest), probes)
    rounding = distance(_told(_coarse(model), probes), base_told)
    for digest in lacking:
        write_proof(
            home,
            Proof(
                digest=digest,
                base_digest=base_id,
                dtype=DTYPE,
                probes=probes,
                logprobs=told[digest],
                base_logprobs=base_told,
                rounding=rounding,
            ),
        )
    return len(lacking)


def _is_there(home: Path, digest: str, base_id: str, probes: _Probes) -> bool:
    try:
        proof = read_proof(home, digest)
    except ProofInvalid:
        return False
    return proof is not None and (proof.base_digest, proof.probes) == (base_id, probes)


def _load(base: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _coarse(model: Any) -> Any:
    import torch

    return model.to(torch.bfloat16)


def _adapted(model: Any, folder: Path, probes: _Probes) -> tuple[Any, Told]:
    """Return the model with the adapter taken out again, and what it told with it."""
    import warnings

    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        adapted = PeftModel.from_pretrained(model, folder).eval()
    told = _told(adapted, probes)
    return adapted.unload(), told


def _told(model: Any, probes: _Probes) -> Told:
    import torch

    rows = []
    for ids in probes:
        scored = min(SCORED_TOKENS, len(ids) - 1)
        ids_1_T = torch.tensor([ids], device=model.device)
        with torch.inference_mode():
            logits_K_V = model(input_ids=ids_1_T, logits_to_keep=scored + 1).logits[0, :-1].float()
        logprobs_K_V = torch.log_softmax(logits_K_V, -1)
        chosen_K = logprobs_K_V.gather(-1, ids_1_T[0, -scored:, None])[:, 0]
        rows.append(tuple(round(value, 7) for value in chosen_K.tolist()))
    return tuple(rows)
