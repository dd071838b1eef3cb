"""The proof of what serves, before any score and before a promotion or a canary.

In: an engine and the digest of the artifact behind every name that it is asked under. Out: the
verdicts; `NotProved` where one of them is not the artifact, or cannot be told from the base.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from serving.engine import Engine
from serving.errors import MolError
from serving.proof import Verdict, read_proof
from serving.proving import prove
from serving.replicas import Replicas

log = logging.getLogger(__name__)


class NotProved(MolError, RuntimeError):
    """An engine does not answer as the artifact that was trained."""


async def prove_served(
    home: Path, engine: Engine, served: Mapping[str, str | None], base_name: str = "base"
) -> tuple[Verdict, ...]:
    """Prove every name against its artifact's proof in the home.

    Args:
        home: with `proofs/`, as `training.proofs.ensure_proofs` leaves it.
        engine: what answers; of several replicas each is proved.
        served: digest by served name; None for the bare base.
        base_name: under which the engine serves it.

    Raises:
        NotProved: naming the first that is not, or has no proof; nothing was scored or changed.
        ProofInvalid: if a proof cannot be read.
    """
    adapters = {name: digest for name, digest in served.items() if digest is not None}
    found = {name: read_proof(home, digest) for name, digest in adapters.items()}
    proofs = {name: proof for name, proof in found.items() if proof is not None}
    for name in found.keys() - proofs.keys():
        raise NotProved(
            f"{name!r} has no proof to compare with: training wrote none down in "
            f"{str(home / 'proofs')!r}. Nothing was scored or changed; 'flows run gate' writes it."
        )
    replicas = engine.engines if isinstance(engine, Replicas) else (engine,)
    provings = await asyncio.gather(*(prove(each, proofs, base_name) for each in replicas))
    for number, verdict in ((n, v) for n, p in enumerate(provings, 1) for v in p.failed):
        where = f"On replica {number} of {len(replicas)}: " if len(replicas) > 1 else ""
        raise NotProved(
            f"{where}{verdict.words} Nothing was scored and the champion stays. Load it afresh, "
            "on an engine of its own if need be, or train it again."
        )
    if proofs:
        log.info("%d names proved in %.1f s", len(proofs), max(p.seconds for p in provings))
    return provings[0].verdicts
