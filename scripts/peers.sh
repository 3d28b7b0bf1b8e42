#!/usr/bin/env bash
# Install the peers that bench/ and the interop tests compare with (PyTorch, DeepSpeed,
# transformers: several GB) into a virtual environment outside this tree, once. Prints its python.
# CZERO_PEERS names the environment's folder; default ~/.cache/czero-peers/venv.
#
# --onebit: the python of a second environment with DeepSpeed 0.16.9, the last version with the 1-bit
# optimizers, and otherwise the packages of the first. None of its ops are built.
set -euo pipefail
venv=${CZERO_PEERS:-$HOME/.cache/czero-peers/venv}
onebit=$venv-0.16.9
need=(torch transformers "deepspeed==0.19.8" numpy safetensors tensorboard scikit-learn seqeval peft trl pyarrow sentencepiece protobuf)

install_peers() {
  if [ ! -x "$venv/bin/python" ]; then
    mkdir -p "$(dirname "$venv")"
    python3 -m venv "$venv" >&2
  fi
  [ ! -e "$venv/.czero-complete" ] || return 0
  "$venv/bin/pip" install --quiet "${need[@]}" >&2
  touch "$venv/.czero-complete"
}

# Its own folder comes first on the path; a .pth file adds the other environment's behind it.
install_onebit() {
  [ ! -e "$onebit/.czero-complete" ] || return 0
  python3 -m venv "$onebit" >&2
  local packages
  packages=$("$onebit/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$packages/czero-peers.pth"
  "$onebit/bin/pip" install --quiet --ignore-installed wheel >&2
  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$onebit/bin/pip" install --quiet --no-deps \
    --no-build-isolation --ignore-installed "deepspeed==0.16.9" >&2
  touch "$onebit/.czero-complete"
}

install_peers
case ${1-} in
  --onebit) install_onebit; echo "$onebit/bin/python" ;;
  '') echo "$venv/bin/python" ;;
  *) echo "usage: peers.sh [--onebit]" >&2; exit 2 ;;
esac
