"""A version as a folder in the Hugging Face layout: PEFT's files and a model card.

In: a registered version and what is known of it. Out: a folder with `adapter_config.json`,
`adapter_model.safetensors`, `README.md` (metadata for the Hub, then words) and `model.sig`, ready
for `PeftModel.from_pretrained` and for an upload. The card names the dataset by its digest and
counts, and holds no row of it.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promotion.gate import GateReport
from promotion.signing import SigningKey, sign_artifact
from promotion.state import RegisteredVersion
from serving.disk import new_folder
from serving.errors import MolError
from serving.records import Record, short_digest
from training.servable import CONFIG_NAME, WEIGHTS_NAME, read_config

if TYPE_CHECKING:
    from curation.manifest import Manifest

CARD_NAME = "README.md"


class ExportRefused(MolError, ValueError):
    """A version cannot be exported, or not to this place; nothing was written."""


class Exported(Record):
    """What an export wrote."""

    adapter: str
    folder: str
    base_model: str
    verdict: str | None
    """Of the newest gate report; None if the gate was not asked."""


def export_version(
    home: Path,
    version: RegisteredVersion,
    folder: Path,
    *,
    base_model: str,
    key: SigningKey,
    licence: str | None = None,
    manifest: "Manifest | None" = None,
    report: GateReport | None = None,
) -> Exported:
    """Write a version's folder, whole and signed or not at all; it must have been checked.

    Args:
        home: where the version lies.
        version: what to export.
        folder: must not be there, or be empty.
        base_model: what others call the base, such as `HuggingFaceTB/SmolLM2-135M-Instruct`.
        key: signs the folder.
        licence: identifier as the Hub has them, such as `apache-2.0`.
        manifest: the dataset it learned from, if it is known.
        report: the gate's word on it, if it was asked.

    Raises:
        ExportRefused: if there is something at `folder`, or the version is no LoRA adapter.
    """
    source = home / version.path
    if not (source / WEIGHTS_NAME).is_file():
        raise ExportRefused(
            f"{version.name!r} is no LoRA adapter: its folder has no {WEIGHTS_NAME!r}. Name one "
            "of 'flows adapters list'."
        )
    folder = folder.resolve()  # '.' has no name, which the signature bears
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportRefused(
            f"There is something at {str(folder)!r} already. Name a folder that is new or empty."
        )
    config = read_config(source) | {"base_model_name_or_path": base_model}
    with new_folder(folder) as new:
        made = new / ".made" / folder.name
        made.mkdir(parents=True)
        shutil.copyfile(source / WEIGHTS_NAME, made / WEIGHTS_NAME)
        (made / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        card = model_card(version, base_model, key, licence, manifest, report)
        (made / CARD_NAME).write_text(card, encoding="utf-8")
        sign_artifact(made, key)
        for file in made.iterdir():
            file.chmod(0o644)
            file.replace(new / file.name)
        shutil.rmtree(made.parent)
        new.chmod(0o755)
        if folder.is_dir():
            folder.rmdir()  # it is empty
    verdict = report.verdict if report else None
    return Exported(
        adapter=version.name, folder=str(folder), base_model=base_model, verdict=verdict
    )


def model_card(
    version: RegisteredVersion,
    base_model: str,
    key: SigningKey,
    licence: str | None,
    manifest: "Manifest | None",
    report: GateReport | None,
) -> str:
    """Return the text of the card: the Hub's metadata, then what a person wants to know."""
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        base_model=base_model,
        library_name="peft",
        pipeline_tag="text-generation",
        license=licence,
        tags=["lora", "mixture-of-lora", f"slot-{version.slot}"],
        model_name=version.name,
        eval_results=_eval_results(report) or None,
    )
    body = "\n".join(
        [
            f"# {version.name}",
            "",
            f"A LoRA adapter of slot `{version.slot}` of a Mixture-of-LoRA server, made "
            f"{version.created_at:%Y-%m-%d}.",
            "",
            *_section("Use", _use(base_model)),
            *_section("Training data", _data(version, manifest)),
            *_section("Gate", _gate(report)),
            *_section("Identity", _identity(version, key)),
        ]
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _use(base_model: str) -> list[str]:
    return [
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f'base = AutoModelForCausalLM.from_pretrained("{base_model}")',
        'model = PeftModel.from_pretrained(base, "path/to/this/folder")',
        "```",
    ]


def _data(version: RegisteredVersion, manifest: "Manifest | None") -> list[str]:
    if version.manifest_digest is None:
        return ["It was imported; what it learned from is not known."]
    lines = [f"Dataset manifest `{version.manifest_digest}`. No row of it is in this folder."]
    if manifest is not None:
        splits = ", ".join(f"{n} {split}" for split, n in manifest.splits.items())
        mix = ", ".join(f"{n} {what}" for what, n in manifest.mix.items())
        lines += ["", f"Rows: {splits}; it trains on {mix}."]
    if version.metrics:
        figures = (f"{name} {_figure(value)}" for name, value in version.metrics.items())
        lines += ["", f"Training: {', '.join(figures)}."]
    return lines


def _gate(report: GateReport | None) -> list[str]:
    if report is None:
        return ["The gate was not asked about this version."]
    against = short_digest(report.champion_digest) if report.champion_digest else "the bare base"
    return [
        f"Verdict **{report.verdict}** against {against} (report `{report.key[:12]}`):",
        "",
        *(f"- {reason}" for reason in report.reasons),
    ]


def _identity(version: RegisteredVersion, key: SigningKey) -> list[str]:
    return [
        f"- adapter `{version.digest}`",
        f"- base model `{version.base_digest}`",
        f"- training run `{version.run_key}`",
        f"- signed by key `{key.fingerprint}`; check it with",
        "  `model_signing verify key FOLDER --signature FOLDER/model.sig --public_key KEY.pub`",
    ]


def _eval_results(report: GateReport | None) -> list[Any]:
    from huggingface_hub import EvalResult

    results = (report.primary, *report.guards) if report else ()
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"mol-loop/{result.suite}",
            dataset_name=f"{result.suite} ({result.slot})",
            metric_type="score",
            metric_value=round(result.comparison.mean_challenger, 4),
        )
        for result in results
        if result.comparison is not None
    ]


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
