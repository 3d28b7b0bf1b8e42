#!/usr/bin/env bash
# Install the missing packages that czero needs on Debian 12 or Ubuntu 24.04. Safe to run again:
# if nothing is missing it makes no change and needs neither root nor the network. The packages have the same
# names in both; most are in Ubuntu's component universe.
set -euo pipefail

packages=(
  gcc g++ cmake ninja-build pkg-config git
  libhwloc-dev liburing-dev libdnnl-dev libutf8proc-dev libdeflate-dev
  zlib1g-dev libzstd-dev
  libopenmpi-dev openmpi-bin iproute2 check python3 python3-numpy
  libcjson-dev # tests: what our JSON reader accepts
  libjansson-dev libuv1-dev # tests: czero's headers compile after theirs
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "setup: run as root, or install: ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
unknown=()
for package in "${missing[@]}"; do
  apt-cache show "$package" >/dev/null 2>&1 || unknown+=("$package")
done
if [ ${#unknown[@]} -gt 0 ]; then
  echo "setup: apt does not know ${unknown[*]}" >&2
  if grep -qs '^ID=ubuntu' /etc/os-release; then
    echo "setup: enable universe: add-apt-repository universe (of software-properties-common)" >&2
  else
    echo "setup: only the packages of Debian 12 and Ubuntu 24.04 are known to do" >&2
  fi
  exit 1
fi
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
