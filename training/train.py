"""From a dataset to a published adapter of one slot: render, train, check, publish, write proof.

In: a home, the manifest of a dataset in it, the base's folder. Out: a `TrainedAdapter`;
its folder under `adapters/` can be loaded by an engine. No engine is touched (DESIGN,
invariant 8). Run it with `flows run train --slot L2`.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation.manifest import read_examples
from serving.errors import MolError
from training.artifact import base_digest, library_versions, publish
from training.config import TrainConfig
from training.proofs import ensure_proofs
from training.runs import TrainedAdapter, find_run, run_folder, run_key, write_config, write_result

if TYPE_CHECKING:
    from curation.manifest import Manifest

_WORK_PREFIX = "work-"


class NothingToLearn(MolError, ValueError):
    """No row of a dataset can be rendered within the limits."""


def train(
    home: Path,
    manifest: "Manifest",
    base: Path,
    config: TrainConfig,
    chat_template: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> TrainedAdapter:
    """Train one slot's LoRA on a dataset, from the base, and publish it.

    A run with the same dataset, base, template, configuration and code is found instead of
    run again. A killed run leaves nothing that counts; the next one starts anew and ends
    with the same bytes.

    Args:
        home: the state folder.
        manifest: the dataset; its slot is the one that is trained.
        base: Hugging Face folder of the frozen base.
        config: how to train.
        chat_template: Jinja text of the template that the engine uses; None for the base's own.
        progress: called with (step, steps in all, loss) after each step.

    Raises:
        NothingToLearn: if no row is left to train on.
        TemplateNotTrainable: if the template does not extend prompts by their answers.
        TrainingFailed: if a guard finds that the run did not do what it should.
        AdapterNotServable: if an engine could not load the result.
        BaseNotFound: if `base` is not a model folder.
        DiskFull: if the result could not be stored.
    """
    key = run_key(manifest, base, config, chat_template)
    done = find_run(home, key, base)
    if done is not None:
        ensure_proofs(home, base, [done.digest])
        return done

    examples = read_examples(home, manifest, "train")
    tokenizer = load_tokenizer(base, chat_template)
    from training import render, sft

    rendered = render.render_rows(tokenizer, examples, config.max_length)
    if not rendered.rows:
        raise NothingToLearn(
            f"Dataset {manifest.digest!r} has {len(examples)} training rows and none can be "
            f"learnt: {rendered.drops}. Raise train.max_length (now {config.max_length}), or "
            "curate again."
        )

    write_config(home, key, config)
    base_before = base_digest(base)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=run_folder(home, key)) as work:
        metrics = sft.fit(rendered.rows, base, tokenizer, config, Path(work), progress)
        sft.check_base(base_before, base_digest(base))
        version = publish(
            home,
            Path(work),
            manifest.slot,
            base,
            manifest_digest=manifest.digest,
            run_key=key,
            seed=config.seed,
            libraries=library_versions(),
        )
    ensure_proofs(home, base, [version.digest])
    result = TrainedAdapter(
        slot=manifest.slot,
        digest=version.digest,
        run_key=key,
        base_digest=base_before,
        manifest_digest=manifest.digest,
        seed=config.seed,
        metrics=metrics,
        drops=rendered.drops,
    )
    write_result(home, result)
    _remove_leftovers(run_folder(home, key))
    return result


def load_tokenizer(base: Path, chat_template: str | None) -> Any:
    """Return the base's tokenizer with the chat template in force."""
    # Read by huggingface_hub when it is first imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed tries of this run left behind."""
    for work in folder.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(work, ignore_errors=True)
