#!/usr/bin/env bash
# Claim: CZ_CUDA, CZ_MPI and CZ_CJSON are ON, OFF or AUTO. OFF looks for nothing, ON ends with a sentence where the
# compiler is missing, AUTO leaves the plug-in out there, and what was found is built. Configures only.
set -uo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d /tmp/czero-options-XXXXXX)
trap 'rm -rf "$work"' EXIT
unset CUDACXX
failed=0

# One folder for all: compilers are examined once, and values change as a user changes them.
configure() { # variables…
  cmake -G Ninja -S "$source_dir" -B "$work/build" -DCZ_TESTS=OFF \
    -UCZ_CUDA -UCZ_MPI -UCZ_PARQUET -UCZ_ARROW_DIR -UCZ_CJSON -UCMAKE_CUDA_COMPILER -UCMAKE_DISABLE_FIND_PACKAGE_MPI "$@" >"$work/out" 2>&1
}
complain() {
  echo "$1" >&2
  tail -20 "$work/out" >&2
  failed=1
}
says() { # text, in one line however cmake wraps it
  tr -s ' \n' ' ' <"$work/out" | grep -qF -- "$1" || complain "\"$1\" is not said"
}
has_target() { ninja -C "$work/build" -t query "$1" >/dev/null 2>&1; }
without_mpi=-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON

configure -DCZ_CUDA=OFF -DCZ_MPI=OFF -DCZ_PARQUET=OFF -DCZ_CJSON=OFF || complain "OFF does not configure"
says "CUDA: left out (CZ_CUDA=OFF)"
says "MPI: left out (CZ_MPI=OFF)"
says "Parquet: left out (CZ_PARQUET=OFF)"
says "cJSON: left out (CZ_CJSON=OFF)"
if grep -qE '^(CMAKE_CUDA_COMPILER|CUDAToolkit_[A-Z_]*|MPI_C_[A-Z_]*):' "$work/build/CMakeCache.txt"; then
  complain "OFF has looked for CUDA or MPI"
fi
has_target czero_shared || complain "no target of the library: this test's question is wrong"
has_target czero_cuda && complain "OFF builds the CUDA plug-in"
has_target czero_mpi && complain "OFF builds the MPI plug-in"
has_target example_config_cjson && complain "OFF builds the example with cJSON"
has_target czero_parquet && complain "OFF builds the Parquet plug-in"

# a machine without libcjson, from here on
printf '#!/bin/sh\ncase "$*" in *libcjson*) exit 1 ;; esac\nexec "%s" "$@"\n' "$(command -v pkg-config)" >"$work/pkg-config"
chmod +x "$work/pkg-config"
configure -DCZ_CUDA=OFF -DCZ_MPI=OFF -DCZ_CJSON=ON -DPKG_CONFIG_EXECUTABLE="$work/pkg-config" && complain "CZ_CJSON=ON configures without libcjson"
says "CZ_CJSON=ON, but libcjson was not found"
configure -DCZ_CUDA=OFF -DCZ_MPI=ON "$without_mpi" && complain "CZ_MPI=ON configures without MPI"
says "CZ_MPI=ON, but mpicc was not found"
configure -DCZ_CUDA=OFF -DCZ_MPI=OFF -DCZ_PARQUET=ON -DCZ_ARROW_DIR=/nonexistent && complain "a folder without Arrow configures"
says "CZ_ARROW_DIR=/nonexistent: no include/parquet/arrow/reader.h, libarrow.so and libparquet.so there"
CUDACXX=/nonexistent/nvcc configure -DCZ_CUDA=ON -DCZ_MPI=OFF && complain "CZ_CUDA=ON configures without nvcc"
says "CZ_CUDA=ON, but nvcc was not found"
configure -DCZ_CUDA=maybe -DCZ_MPI=OFF && complain "CZ_CUDA=maybe configures"
says "CZ_CUDA=maybe: ON, OFF or AUTO is needed"
configure -DCZ_CUDA=ON -DCZ_MPI=OFF -DCZ_TSAN=ON && complain "CZ_CUDA=ON configures with CZ_TSAN"
says "CZ_CUDA=ON does not go with"

CUDACXX=/nonexistent/nvcc configure -UCZ_TSAN "$without_mpi" || complain "AUTO does not configure without CUDA and MPI"
says "CUDA: left out (nvcc not found)"
says "MPI: left out (no mpicc found"
says "cJSON: left out (libcjson not found"
has_target example_config_cjson && complain "AUTO builds the example without libcjson"

found=()
command -v nvcc >/dev/null && found+=(-DCZ_CUDA=ON)
command -v mpicc >/dev/null && found+=(-DCZ_MPI=ON)
pkg-config --exists libcjson && found+=(-DCZ_CJSON=ON)
rm -rf "$work/build"
configure "${found[@]}" || complain "what is here does not configure: ${found[*]}"
for option in "${found[@]}"; do
  plugin=czero_mpi
  [[ $option == *CUDA* ]] && plugin=czero_cuda
  [[ $option == *CJSON* ]] && plugin=example_config_cjson
  has_target "$plugin" || complain "no target $plugin with $option"
done
[ $failed = 0 ] && echo "OFF, ON and AUTO do as they say; here: ${found[*]:-none of nvcc, mpicc and libcjson}"
exit $failed
