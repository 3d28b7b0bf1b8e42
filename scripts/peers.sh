#!/usr/bin/env bash
# Install the peers that bench/ and the interop tests compare with (PyTorch, DeepSpeed,
# transformers: several GB) into a virtual environment outside this tree, once. Prints its python.
# CZERO_PEERS names the environment's folder; default ~/.cache/czero-peers/venv.
set -euo pipefail
venv=${CZERO_PEERS:-$HOME/.cache/czero-peers/venv}
if [ ! -x "$venv/bin/python" ]; then
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv" >&2
fi
need=(torch transformers "deepspeed==0.19.8" numpy safetensors tensorboard)
if [ ! -e "$venv/.czero-complete" ]; then
  "$venv/bin/pip" install --quiet "${need[@]}" >&2
  touch "$venv/.czero-complete"
fi
echo "$venv/bin/python"
