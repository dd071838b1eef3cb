"""The real vLLM, started for as long as a block runs.

`start(base)` launches the server of `.venv-vllm` on the loopback, waits until it
answers and yields its address; leaving the block, or dying, stops it. It serves
the base model under `base`, adapters named in `lora_modules`, and loads others
while it runs (`/v1/load_lora_adapter`).

Run it: `python -m infra.vllm_server --base FOLDER [--port N] [--lora NAME=FOLDER ...]`
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx

from infra.base_model import say_on_stderr
from serving.child import HOST, free_port, start_child, stop_child
from serving.errors import MolError

VENV = Path(__file__).parents[1] / ".venv-vllm"
BASE_NAME = "base"
MODULE = "vllm.entrypoints.openai.api_server"
STARTUP_LIMIT_S = 600.0
_SOCKET_NAME_CHARS = 36
"""A UUID."""
_SOCKET_PATH_BYTES = 103
"""What the path of a socket may have, its end not counted; on Linux four more."""


class VllmNotInstalled(MolError, FileNotFoundError):
    """There is no `.venv-vllm`."""


class VllmNotStarted(MolError, RuntimeError):
    """The server ended, or did not answer in time."""


@contextlib.contextmanager
def start(
    base: Path,
    port: int = 0,
    lora_modules: Mapping[str, Path] | None = None,
    *,
    max_loras: int = 16,
    max_lora_rank: int = 16,
    max_model_len_tokens: int = 2048,
    max_num_seqs: int = 32,
    log: Path = Path(".mol/vllm.log"),
    extra: tuple[str, ...] = (),
    venv: Path = VENV,
    stop_limit_s: float = 10.0,
    say: Callable[[str], None] = say_on_stderr,
) -> Iterator[str]:
    """Serve `base` while the block runs and yield the address, `http://127.0.0.1:<port>`.

    Args:
        base: Hugging Face folder; its chat template is the one in force.
        port: 0 takes a free one.
        lora_modules: PEFT folders to have loaded from the start, by served name.
        max_loras: adapters that can be in one batch; also how many vLLM keeps before it
            silently evicts the least recently used. Unloading frees no slot, and once all were
            used, the CPU build (0.32) gives the base in a mixed batch the adapter in the last one:
            start it anew before so many have been loaded.
        max_lora_rank: one of 1, 8, 16, 32, 64, 128, 256, 320, 512.
        max_model_len_tokens: prompt and answer together.
        max_num_seqs: requests in one batch.
        log: where vLLM's output goes; written anew.
        extra: more words for vLLM's command line.
        venv: the environment vLLM is installed in.
        stop_limit_s: how long the server may take to end by itself before it is killed.
        say: takes progress lines.

    Raises:
        VllmNotInstalled: without `.venv-vllm`.
        VllmNotStarted: if the server ends or does not answer in time; names its last error.
    """
    if not (base / "config.json").is_file():
        raise VllmNotStarted(
            f"No base model in {str(base)!r}: it has no config.json. "
            f"Fetch the default one with 'python -m infra.base_model --out {base}'."
        )
    python = venv / "bin" / "python"
    if not python.exists():
        raise VllmNotInstalled(f"vLLM is not installed in {str(venv)!r}. Run 'make vllm-install'.")
    port = port or free_port()
    options = _options(
        base,
        port,
        _is_cpu_build(venv),
        max_loras,
        max_lora_rank,
        max_model_len_tokens,
        max_num_seqs,
    )
    if lora_modules:
        options += ["--lora-modules", *(f"{n}={p.resolve()}" for n, p in lora_modules.items())]
    url = f"http://{HOST}:{port}"
    with _temporary_folder() as folder:
        environment = _environment() | {"TMPDIR": folder}
        server = start_child(MODULE, [*options, *extra], environment, log, python)
        try:
            _wait_until_ready(server, url, log, say)
            yield url
        finally:
            stop_child(server, stop_limit_s)


def _temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Make a folder for what vLLM puts into the temporary one and leaves there: its sockets."""
    made = Path(tempfile.gettempdir(), f"mol-vllm-{'x' * 8}", "x" * _SOCKET_NAME_CHARS)
    usual = len(os.fsencode(made)) <= _SOCKET_PATH_BYTES
    place = None if usual else "/tmp"  # noqa: S108 - the folder in it is made for us alone
    return tempfile.TemporaryDirectory(prefix="mol-vllm-", dir=place, ignore_cleanup_errors=True)


def _options(
    base: Path,
    port: int,
    cpu_build: bool,
    max_loras: int,
    max_lora_rank: int,
    max_model_len_tokens: int,
    max_num_seqs: int,
) -> list[str]:
    return [
        *("--model", str(base.resolve())),
        *("--served-model-name", BASE_NAME),
        *("--host", HOST, "--port", str(port)),
        # On two AVX2 cores float32 is 4.5 times faster than bfloat16; the CPU build does not
        # compile, and is up 20 s sooner for not preparing to.
        *(("--dtype", "float32", "--enforce-eager") if cpu_build else ("--dtype", "auto")),
        *("--max-model-len", str(max_model_len_tokens)),
        *("--max-num-seqs", str(max_num_seqs)),
        # Sampling is what the request says, never what a base's folder suggests.
        *("--generation-config", "vllm"),
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enable-lora",
        *("--max-loras", str(max_loras), "--max-cpu-loras", str(max_loras)),
        *("--max-lora-rank", str(max_lora_rank)),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        "--disable-uvicorn-access-log",
    ]


def _environment() -> dict[str, str]:
    # Development endpoints can overwrite weights; they are never on, whatever the shell says.
    kept = {k: v for k, v in os.environ.items() if k != "VLLM_SERVER_DEV_MODE"}
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; 23,000 tokens of the default base
        # What was compiled once stays for the next start, beside the folder that goes.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")),
    }
    fixed = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return defaults | kept | fixed


def _is_cpu_build(venv: Path) -> bool:
    stamp = venv / "installed"
    return stamp.exists() and stamp.read_text().startswith("vllm-cpu")


def _wait_until_ready(
    server: subprocess.Popen[bytes], url: str, log: Path, say: Callable[[str], None]
) -> None:
    say(f"vLLM: starting at {url} (about a minute; log in {log}) ...")
    started = told = time.monotonic()
    with httpx.Client(trust_env=False, timeout=5) as client:
        while True:
            # Before asking: another program may own the port, and answer in vLLM's place.
            if server.poll() is not None:
                raise VllmNotStarted(
                    f"vLLM ended with status {server.returncode!r} while starting: "
                    f"{_last_error(log)} The whole log is in {str(log)!r}."
                )
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/health").is_success:
                    say(f"vLLM: ready ({time.monotonic() - started:.0f} s).")
                    return
            now = time.monotonic()
            if now - started > STARTUP_LIMIT_S:
                raise VllmNotStarted(
                    f"vLLM did not answer within {STARTUP_LIMIT_S:.0f} s. "
                    f"The log is in {str(log)!r}."
                )
            if now - told >= 10:
                say(f"vLLM: still starting, {now - started:.0f} s ...")
                told = now
            time.sleep(0.5)


def _last_error(log: Path) -> str:
    """Return the line of a log that most likely says why: the last one naming an error."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b\w*(Error|Exception)\b: |error: ", line)]
    causes = [line for line in named if "root cause above" not in line]
    line = (causes or named or lines or ["it said nothing."])[-1]
    return re.sub(r"^.*?\] ", "", line).strip()[:300]


def main() -> int:
    """Serve until Ctrl-C; 0 after it, 1 if the server could not start or ended by itself."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--base", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--log", type=Path, default=Path(".mol/vllm.log"))
    args = parser.parse_args()
    loras = {}
    for pair in args.lora:
        name, _, folder = pair.partition("=")
        if not (name and folder):
            parser.error(f"--lora {pair!r} is not NAME=FOLDER")
        loras[name] = Path(folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with start(args.base, args.port, loras, log=args.log) as url:
            say_on_stderr(f"vLLM: serving {str(args.base)!r} as {BASE_NAME!r}; Ctrl-C stops it.")
            print(url, flush=True)
            with httpx.Client(trust_env=False, timeout=30) as client:
                while True:
                    time.sleep(2)
                    client.get(f"{url}/health").raise_for_status()
    except KeyboardInterrupt:
        say_on_stderr("vLLM: stopped.")
        return 0
    except httpx.HTTPError:
        say_on_stderr(f"vLLM ended by itself: {_last_error(args.log)} See {str(args.log)!r}.")
        return 1
    except MolError as error:
        say_on_stderr(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
