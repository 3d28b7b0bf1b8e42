#!/usr/bin/env bash
# Make the packages of this version (docs/install.md):
#   czero-VERSION-linux-x86_64.tar.zst               programs, libraries, headers; libraries of others inside
#   czero, libczero0, libczero0-mpi, libczero-dev    Debian packages
#   czero-VERSION-py3-none-manylinux_….whl           Python wheel
#   scripts/package.sh [options] [tarball] [debs] [wheel]     default: all three
#     --build DIR    build folder, configured by this script (default: build-package)
#     --out DIR      where the packages go (default: DIR/packages of the build folder)
#     -j N           processes of the compiler
# The packages are without the CUDA plug-in: it needs NVIDIA's libraries of the machine that it runs on
# (docs/gpu.md). They run where glibc is at least that of the machine that makes them, on any x86-64
# processor; kernels are chosen at run time. SOURCE_DATE_EPOCH (default: the last commit's time) is the time in them.
# Needs what scripts/setup.sh installs, and patchelf, zstd, dpkg-dev, fakeroot (Debian: apt install …).
set -euo pipefail
self=$(readlink -f "$0")
source_dir=$(dirname "$(dirname "$self")")
die() { echo "package: $1" >&2; exit 1; }

build=$source_dir/build-package out='' jobs=() kinds=()
while [ $# -gt 0 ]; do
  case $1 in
    --build | --out | -j) [ $# -ge 2 ] || die "$1 needs a value" ;;&
    --build) mkdir -p "$2" && build=$(readlink -f "$2") && shift ;;
    --out) mkdir -p "$2" && out=$(readlink -f "$2") && shift ;;
    -j) jobs=(-j "$2") && shift ;;
    tarball | debs | wheel) kinds+=("$1") ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self" && exit 0 ;;
    *) die "unknown argument $1; --help lists them" ;;
  esac
  shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(tarball debs wheel)
: "${out:=$build/packages}"
missing=()
for tool in cmake ninja patchelf zstd dpkg-shlibdeps fakeroot python3; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
[ ${#missing[@]} -eq 0 ] || die "missing: ${missing[*]} (Debian: apt install patchelf zstd dpkg-dev fakeroot)"
[ "$(uname -m)" = x86_64 ] || die "packages are made on x86-64"
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$source_dir" log -1 --format=%ct 2>/dev/null || date +%s)
fi
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022

# /usr: Debian's folder for libraries. The prefix map keeps this folder's name out of the programs.
CFLAGS="${CFLAGS:-} -ffile-prefix-map=$source_dir/=" cmake -G Ninja -S "$source_dir" -B "$build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_INSTALL_PREFIX=/usr -DCZ_TESTS=OFF -DCZ_CUDA=OFF >"$build.log" 2>&1 || { tail -20 "$build.log" >&2; exit 1; }
mv "$build.log" "$build/package.log"
cmake --build "$build" "${jobs[@]}" --target czero_shared czero_archive tool_czero tool_zero_to_fp32 pages >>"$build/package.log" ||
  { tail -20 "$build/package.log" >&2; exit 1; }
if ninja -C "$build" -t query czero_mpi >/dev/null 2>&1; then cmake --build "$build" --target czero_mpi >>"$build/package.log"; fi
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
libdir=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:PATH=//p' "$build/CMakeCache.txt")
[ -n "$version" ] && [ -n "$libdir" ] || die "the build folder has neither version nor folder of libraries"
mkdir -p "$out"
stage=$(mktemp -d "${TMPDIR:-/tmp}/czero-package-XXXXXX")
trap 'rm -rf "$stage"' EXIT

install_into() { # prefix, components…
  local prefix=$1 component
  shift
  for component; do cmake --install "$build" --prefix "$prefix" --strip --component "$component" >>"$build/package.log"; done
}

# The libraries that ELF files need, and those that they need, are copied into `folder` and look for each
# other there; the copyright file of each one's Debian package goes to `licenses`. Not glibc's, which
# belong to the system, nor the others in `leave`.
libraries=$(ldconfig -p)
GLIBC='ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1'
bundle() { # folder, licenses, leave, files…
  local folder=$1 licenses=$2 leave=" $GLIBC $3 " name path owner
  shift 3
  local queue=("$@")
  mkdir -p "$licenses"
  while [ ${#queue[@]} -gt 0 ]; do
    for name in $(readelf -dW "${queue[0]}" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]$/\1/p'); do
      [[ $leave != *" $name "* && ! -e $folder/$name ]] || continue
      path=$(awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }' <<<"$libraries")
      [ -n "$path" ] || die "${queue[0]} needs $name, which is not here"
      path=$(readlink -f "$path")
      owner=$(dpkg -S "$path" 2>/dev/null || dpkg -S "${path#/usr}") || die "$path belongs to no Debian package"
      owner=${owner%%:*}
      cp "/usr/share/doc/$owner/copyright" "$licenses/$owner"
      install -m 644 "$path" "$folder/$name"
      patchelf --set-rpath "\$ORIGIN" "$folder/$name"
      queue+=("$folder/$name")
    done
    queue=("${queue[@]:1}")
  done
}
# Licenses that copyright files of Debian refer to.
common_licenses() { # folder
  local name
  for name in $(grep -rhoE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$1" | sort -u); do
    if [ -e "$name" ]; then cp -L "$name" "$1/common-license-${name##*/}"; fi
  done
}
made() { printf '%9d bytes  %s\n' "$(stat -c %s "$1")" "$1"; }

make_tarball() {
  local top=czero-$version
  local root=$stage/$top components=(runtime library development)
  [ ! -e "$build/libczero_mpi.so" ] || components+=(mpi)
  install_into "$root" "${components[@]}"
  strip --strip-debug --enable-deterministic-archives "$root/$libdir/libczero.a"
  bundle "$root/$libdir" "$root/share/doc/czero/licenses" "" "$root"/bin/* "$root/$libdir/libczero.so.$version"
  common_licenses "$root/share/doc/czero/licenses"
  tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$top" |
    zstd -q -15 -T0 -f -o "$out/$top-linux-x86_64.tar.zst"
  made "$out/$top-linux-x86_64.tar.zst"
}

make_debs() {
  rm -f "$build"/packages/*.deb
  (cd "$build" && fakeroot cpack -G DEB >>package.log 2>&1) || { tail -20 "$build/package.log" >&2; exit 1; }
  local deb
  for deb in "$build"/packages/*.deb; do
    [ "$out" = "$build/packages" ] || mv "$deb" "$out/"
    made "$out/${deb##*/}"
  done
  rm -rf "$build/packages/_CPack_Packages"
}

# Plug-in for MPI: not inside, as a wheel cannot depend on an MPI library.
make_wheel() {
  local root=$stage/wheel
  mkdir -p "$root/native"
  install_into "$root/prefix" runtime library
  install -m 755 "$root"/prefix/bin/* "$root/native/"
  install -m 644 "$root/prefix/$libdir/libczero.so.$version" "$root/native/libczero.so.${version%%.*}"
  bundle "$root/native" "$root/licenses" "libstdc++.so.6 libgcc_s.so.1" "$root/native/czero" "$root/native/zero_to_fp32"
  common_licenses "$root/licenses"
  made "$(python3 "$source_dir/python/make_wheel.py" --version "$version" --native "$root/native" --licenses "$root/licenses" \
    --share "$root/prefix/share" --out "$out")"
}

for kind in "${kinds[@]}"; do "make_$kind"; done
