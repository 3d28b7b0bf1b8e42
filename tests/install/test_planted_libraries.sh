#!/usr/bin/env bash
# Claim: no program loads a shared library or a plug-in from the folder in which it is started, neither
# from the build tree nor installed: not the libraries that it needs, nor libczero_cuda.so (--device cuda) and
# libczero_mpi.so (several MPI ranks). The planted ones write a file when they are loaded.
set -euo pipefail
build=$1
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
if grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then
  echo "skipped: the sanitizers' run-time libraries open files in the program's place"
  exit 77
fi
unset LD_LIBRARY_PATH CZERO_CUDA_PLUGIN CZERO_MPI_PLUGIN
work=$(mktemp -d /tmp/czero-planted-XXXXXX)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"

programs=()
while IFS= read -r -d '' file; do
  if [ "$(head -c 4 "$file" | tail -c 3)" = ELF ]; then programs+=("$file"); fi
done < <(find "$build" "$work/prefix" -type f -perm -100 -not -name '*.so*' \
  -not -path '*/CMakeFiles/*' -not -path '*/fixtures/*' -print0)
mapfile -t libraries < <(find "$build" "$work/prefix" -type f -name 'libczero*.so*' -not -path '*/CMakeFiles/*')

# One planted file for each library that one of them needs, but the C library's own; and the plug-ins in a
# folder of their own, as a program may not come to them with planted libraries.
mkdir "$work/planted" "$work/plugins" "$work/data"
cat >"$work/planted.c" <<'C'
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void)
{
    const int fd = open(LOADED, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd >= 0 && write(fd, NAME "\n", sizeof NAME) > 0) close(fd);
}
C
plant() { # folder, names
  local folder=$1 name
  shift
  for name; do
    gcc -shared -fPIC -DNAME="\"$name\"" -DLOADED="\"$work/loaded\"" "$work/planted.c" -o "$work/$folder/$name"
  done
}
mapfile -t needed < <({
  readelf -dW "${programs[@]}" "${libraries[@]}" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]$/\1/p'
  printf '%s\n' libhwloc.so.15 libczero.so.0
} | sort -u | grep -vE '^(ld-linux.*|libc\.so\.6)$')
plant planted "${needed[@]}"
plant plugins libczero_cuda.so libczero_mpi.so libnccl.so.2
cd "$work/planted"

# The trap works: a program that looks here does load one.
echo 'int main(void) { return 0; }' >"$work/looks_here.c"
gcc "$work/looks_here.c" -o "$work/looks_here" -Wl,-rpath,. -Wl,--no-as-needed -L. -l:libhwloc.so.15
"$work/looks_here"
grep -qx libhwloc.so.15 "$work/loaded" || { echo "the planted libraries do nothing" >&2; exit 1; }
rm "$work/loaded"

failed=0
bad() { echo "$*" >&2; failed=1; }
# What the dynamic loader would open, for every program and library: a path that is not absolute is here ("not" found aside).
loader=$(readelf -lW "$build/czero" | sed -nE 's/.*program interpreter: (.*)\]/\1/p')
for file in "${programs[@]}" "${libraries[@]}"; do
  LD_TRACE_LOADED_OBJECTS=1 "$loader" "$file" >"$work/opens" 2>/dev/null || true
  grep -q 'libc\.so\.6 => ' "$work/opens" || bad "$file: the loader says nothing of it"
  if sed -E 's/^\s*//; s/.* => //; s/ .*//' "$work/opens" | grep -vE '^(/|linux-vdso|not$)' >"$work/here"; then
    bad "$file would load $(tr '\n' ' ' <"$work/here")from the current folder"
  fi
done

# And what they open while they run.
checked() { # name, command
  local name=$1
  shift
  timeout 60 "$@" >"$work/out" 2>&1 </dev/null || true
  if [ -e "$work/loaded" ]; then
    bad "$name loaded $(sort -u "$work/loaded" | tr '\n' ' ')from the current folder"
    rm "$work/loaded"
  fi
}
head -c 20000 "$source_dir/examples/data/fortunes.txt" >"$work/data/text.txt"
for bin in "$build" "$work/prefix/bin"; do
  checked "$bin/czero" "$bin/czero" --version
  checked "$bin/zero_to_fp32" "$bin/zero_to_fp32" --help
done
cd "$work/plugins"
mkdir "$work/alone" # without plug-ins beside it
cp "$work/prefix/bin/czero" "$work/alone"
for bin in "$build" "$work/prefix/bin" "$work/alone"; do
  train=("$bin/czero" train --model gpt2-tiny --data "$work/data/text.txt" --steps 1 --seq-len 16 --config "$source_dir/configs/zero0.json")
  checked "$bin/czero on a GPU" "${train[@]}" --device cuda
  grep -q 'device cuda' "$work/out" || [ -e /dev/nvidiactl ] || bad "no GPU was asked for: $(cat "$work/out")"
  checked "$bin/czero as an MPI rank" env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 "${train[@]}"
done
echo "${#programs[@]} programs, ${#libraries[@]} libraries, ${#needed[@]} planted ones"
exit $failed
