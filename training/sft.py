"""Supervised fine-tuning of one LoRA with TRL and PEFT. Imports torch: load it late.

In: rendered rows and the base's folder. Out: a PEFT folder and the run's metrics. The base
is frozen; the adapter starts from zero (B = 0) each time. Rows, masks, trainable
parameters, moved weights and the untouched base are checked, as each can fail silently.
"""

import contextlib
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)
from trl import SFTConfig, SFTTrainer

from serving.errors import MolError
from training.artifact import base_digest
from training.batches import collate
from training.config import TrainConfig
from training.render import IGNORED, Row

Progress = Callable[[int, int, float], None]
"""Called with (step, steps in all, loss) after each step."""


class TrainingFailed(MolError, RuntimeError):
    """A guard found that a run did not do what it was asked to; nothing is published."""


class BaseChanged(TrainingFailed):
    """The frozen base was written to."""


class SlotTrainer(SFTTrainer):
    """TRL's trainer with a loss that projects only the learnt places onto the vocabulary.

    TRL 1.16 does that with Triton alone; on a CPU its fused head scores every token, which
    for a small base and short answers costs a third of the step.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of `weighted_loss`."""
        loss, outputs = weighted_loss(model, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


def weighted_loss(model: Any, batch: dict[str, Any], count: Any) -> tuple[torch.Tensor, Any]:
    """Return the weighted sum of the learnt tokens' losses over their number, and the outputs.

    Args:
        model: a causal language model.
        batch: what `training.batches.collate` returns.
        count: learnt tokens of the whole weight update; None for those of this batch.
    """
    labels_B_T, weights_B_T = batch["labels"], batch["weights"]
    learnt_K = (labels_B_T != IGNORED).any(dim=0).nonzero().flatten()
    outputs = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        attention_mask=batch["attention_mask"],
        logits_to_keep=learnt_K - 1,
        use_cache=False,
    )
    labels_N = labels_B_T[:, learnt_K].flatten()
    losses_N = F.cross_entropy(
        outputs.logits.flatten(0, 1).float(), labels_N, ignore_index=IGNORED, reduction="none"
    )
    if count is None:
        count = (labels_N != IGNORED).sum()
    return (losses_N * weights_B_T[:, learnt_K].flatten()).sum() / count, outputs


class _Collator:
    """Makes batches and counts what went into them."""

    def __init__(self, rows: Sequence[Row], pad_token_id: int) -> None:
        self.rows = rows
        self.pad_token_id = pad_token_id
        self.rows_seen = 0
        self.tokens_seen = 0
        self.tokens_computed = 0

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows = [self.rows[f["row"]] for f in features]
        batch = collate(rows, self.pad_token_id)
        self.rows_seen += len(rows)
        self.tokens_seen += sum(len(r.input_ids) for r in rows)
        self.tokens_computed += batch["input_ids"].numel()
        return batch


class _Report(TrainerCallback):
    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss = (kwargs.get("logs") or {}).get("loss")
        if self.progress is not None and loss is not None:
            self.progress(state.global_step, state.max_steps, float(loss))


def fit(
    rows: Sequence[Row],
    base: Path,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainConfig,
    output: Path,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train a LoRA on `rows` and save it in PEFT form into `output`; return the metrics.

    Raises:
        TrainingFailed: if a guard finds that something was not learnt, or not from all rows.
        BaseChanged: if a parameter of the base moved.
    """
    started = time.monotonic()
    with _threads(config.threads), _quiet():
        collator = _Collator(rows, tokenizer.pad_token_id)
        trainer = _trainer(rows, base, tokenizer, config, output, collator, progress)
        _check_before(trainer, rows)
        before = parameters_digest(trainer.model)
        loss = trainer.train().training_loss
        check_base(before, parameters_digest(trainer.model))
        check_rows(collator.rows_seen, len(rows) * config.epochs)
        check_moved(trainer.model)
        _save(trainer.model, base, output)
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return {
        "train_loss": float(loss),
        "rows": len(rows),
        "supervised_tokens": sum(r.supervised_tokens for r in rows),
        "trainable_parameters": trainable,
        "steps": trainer.state.global_step,
        "tokens": collator.tokens_seen,
        "computed_tokens": collator.tokens_computed,
        "seconds": round(time.monotonic() - started, 2),
    }


def _trainer(
    rows: Sequence[Row],
    base: Path,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainConfig,
    output: Path,
    collator: _Collator,
    progress: Progress | None,
) -> SlotTrainer:
    model = AutoModelForCausalLM.from_pretrained(
        base,
        dtype=torch.bfloat16 if torch.cuda.is_available() else torch.float32,
        attn_implementation="sdpa",
        local_files_only=True,
        use_safetensors=True,
    )
    steps = -(-len(rows) // (config.batch_size * config.grad_accum)) * config.epochs
    dataset = Dataset.from_list(
        # Ready-made tokens and labels: TRL prepares, cuts and drops nothing.
        [{"input_ids": r.input_ids, "labels": r.labels, "row": i} for i, r in enumerate(rows)]
    )
    trainer = SlotTrainer(
        model=model,
        args=_arguments(config, output, steps),
        data_collator=collator,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=config.r,
            lora_alpha=config.alpha,
            target_modules="all-linear",
            bias="none",
            task_type="CAUSAL_LM",
        ),
        callbacks=[_Report(progress)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(config: TrainConfig, output: Path, steps: int) -> SFTConfig:
    on_gpu = torch.cuda.is_available()
    return SFTConfig(
        output_dir=str(output),
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.grad_accum,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        warmup_steps=int(steps * config.warmup_fraction),
        lr_scheduler_type="linear",
        max_length=None,
        seed=config.seed,
        data_seed=config.seed,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        # A 135M base fits; recomputing activations costs a tenth to a third of a CPU run.
        activation_checkpointing=False,
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def parameters_digest(model: Any) -> str:
    """Return a digest of the bytes of every parameter that is not the adapter's."""
    total = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            data = parameter.detach().cpu().contiguous().view(torch.uint8)
            total.update(name.encode() + b"\0")
            total.update(data.numpy().data)
    return "sha256:" + total.hexdigest()


def _save(model: PeftModel, base: Path, output: Path) -> None:
    # PEFT would write the path of the base on this machine, and look it up to compare sizes.
    model.peft_config["default"].base_model_name_or_path = base_digest(base)
    model.save_pretrained(output, safe_serialization=True, save_embedding_layers=False)


def _check_before(trainer: SlotTrainer, rows: Sequence[Row]) -> None:
    check_rows(len(trainer.train_dataset), len(rows))
    check_supervised(rows)
    check_trainable(trainer.model)


def check_rows(found: int, expected: int) -> None:
    """Raise `TrainingFailed` if rows went missing, or came more than once, on the way."""
    if found != expected:
        raise TrainingFailed(
            f"The trainer saw {found} rows where it was given {expected}. Report this with the "
            "versions of TRL and transformers; nothing was published."
        )


def check_supervised(rows: Sequence[Row]) -> None:
    """Raise `TrainingFailed` if there is no row, or one without a token to learn."""
    bad = [r.example_id for r in rows if r.supervised_tokens < 1 or r.prompt_tokens < 1]
    if bad or not rows:
        raise TrainingFailed(
            f"{len(bad)} of {len(rows)} rows have no prompt or no token to learn "
            f"(first: {bad[0] if bad else None!r}). Curate again with 'flows run curate'."
        )


def check_trainable(model: Any) -> None:
    """Raise `TrainingFailed` unless exactly the adapter's parameters are trained."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    others = [name for name in names if "lora_" not in name]
    if not isinstance(model, PeftModel) or not names or others:
        raise TrainingFailed(
            f"{len(names)} parameters would be trained, {len(others)} of them not the adapter's "
            f"(first: {others[0] if others else None!r}). The base has no linear layers PEFT "
            "knows, or is not frozen; nothing was published."
        )


def check_moved(model: Any) -> None:
    """Raise `TrainingFailed` if an adapter weight is not finite or a B is still zero."""
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        if not bool(torch.isfinite(parameter).all()):
            raise TrainingFailed(
                f"Weight {name!r} is not finite after training. Lower train.learning_rate."
            )
        if "lora_B" in name and not bool(parameter.any()):
            raise TrainingFailed(
                f"Weight {name!r} did not move, so this layer learnt nothing. Raise "
                "train.epochs or train.learning_rate."
            )


def check_base(before: str, after: str) -> None:
    """Raise `BaseChanged` if the base's bytes are not what they were."""
    if before != after:
        raise BaseChanged(
            f"The base changed during training, from {before!r} to {after!r}. It must stay "
            "frozen; nothing was published."
        )


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the libraries say about each other."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        yield
