#!/usr/bin/env bash
# Claim: scripts/package.sh makes packages that install and work where nothing else of czero is. In a bare root of
# Debian 12: the tarball trains, saves and consolidates with glibc as the only library of the system, and names no
# folder of the machine that made it; the Debian packages install with what they depend on, work, and leave
# nothing behind when they are removed; lintian has nothing to say of them but for the documented overrides. In
# a fresh venv with numpy alone: both commands of the wheel and everything that tests/python checks.
# CZERO_PACKAGES names a folder of packages that are tested instead of new ones, CZERO_BARE_ROOT a folder that
# keeps the bare root for the next run (two minutes).
set -euo pipefail
build=$1
cd "$(dirname "$0")/../.."
source_dir=$PWD
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "$1" >&2; exit 1; }
if grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then skip "packages are made of the release build"; fi
[ "$(id -u)" = 0 ] || skip "a bare root needs root"
[ -d .git ] || skip "scripts/bare_check.sh clones a git repository"
for tool in debootstrap patchelf zstd dpkg-shlibdeps fakeroot lintian; do
  command -v "$tool" >/dev/null || skip "no $tool (Debian: apt install debootstrap patchelf zstd dpkg-dev fakeroot lintian)"
done
work=$(mktemp -d "${TMPDIR:-/tmp}/czero-packages-XXXXXX")
chmod 755 "$work"
trap 'rm -rf --one-file-system "$work"' EXIT

packages=${CZERO_PACKAGES:-$work/packages}
[ -n "${CZERO_PACKAGES:-}" ] || scripts/package.sh --build "$build/package" --out "$packages"
ls -l "$packages"
tarball=$(echo "$packages"/czero-*-linux-x86_64.tar.zst) wheel=$(echo "$packages"/czero-*-manylinux_*.whl)

pristine=${CZERO_BARE_ROOT:-$work/pristine}
inside() { # root, command
  (cd "$work" && bash "$source_dir/scripts/bare_check.sh" --root "$1" --command "$2") >"$work/inside.log" 2>&1 || { cat "$work/inside.log" >&2; return 1; }
  cat "$work/inside.log"
}
if [ ! -e "$pristine/etc/bare_check-suite" ]; then
  (cd "$work" && bash "$source_dir/scripts/bare_check.sh" --keep --root "$pristine" --command true) || skip "debootstrap makes no root here"
fi
new_root() { # name
  cp -a "$pristine" "$work/$1"
  cp tests/install/use_package.sh "$work/$1/root/"
}

echo "== tarball"
new_root tarball
zstd -dc "$tarball" | tar -C "$work/tarball/opt" -xf -
top=$(basename "$tarball" -linux-x86_64.tar.zst)
if grep -rqF "$source_dir" "$work/tarball/opt/$top"; then fail "the tarball names $source_dir"; fi
# shellcheck disable=SC2016
cat >"$work/tarball/root/loads.sh" <<'INSIDE'
set -e
for file in /opt/czero-*/bin/* /opt/czero-*/lib/*/lib*.so*; do
  case $file in *libczero_mpi.so) continue ;; esac # needs MPI of the system
  LD_TRACE_LOADED_OBJECTS=1 /lib64/ld-linux-x86-64.so.2 "$file" >/tmp/loads
  if grep -vE 'linux-vdso|/opt/czero|(ld-linux-x86-64|lib(c|m|dl|rt|pthread))\.so' /tmp/loads; then
    echo "$file loads this from the system"
    exit 1
  fi
done
INSIDE
inside "$work/tarball" "bash /root/loads.sh && mv /opt/$top /srv/moved && bash /root/use_package.sh /srv/moved/bin"

echo "== Debian packages"
lintian --allow-root --fail-on error,warning "$packages"/*.deb || fail "lintian has findings"
new_root debs
mkdir "$work/debs/root/packages"
cp "$packages"/*.deb "$work/debs/root/packages"
cat >"$work/debs/root/debs.sh" <<'INSIDE'
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
dpkg-query -W -f '${Package}\n' >/tmp/before
apt-get install -y -qq --no-install-recommends /root/packages/czero_*.deb /root/packages/libczero0_*.deb \
  /root/packages/libczero-dev_*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
apt-get install -qq -s --no-install-recommends /root/packages/libczero0-mpi_*.deb >/dev/null # its dependencies exist
ldconfig -p | grep libczero.so.0
test -e /usr/include/czero/czero.h && test -e /usr/share/doc/czero/copyright && test -e /usr/share/bash-completion/completions/czero
bash /root/use_package.sh /usr/bin
apt-get purge -y -qq czero libczero0 libczero-dev >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
apt-get autoremove -y -qq --purge >/dev/null 2>&1
dpkg-query -W -f '${Package}\n' | diff /tmp/before -
find / -xdev -iname '*czero*' -not -path '/root/*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/cache/*' >/tmp/left
if [ -s /tmp/left ]; then cat /tmp/left; echo "was left behind"; exit 1; fi
INSIDE
inside "$work/debs" "bash /root/debs.sh"

echo "== wheel"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q numpy || skip "the wheel was not tested: pip cannot install numpy here"
"$work/venv/bin/pip" install -q --no-deps "$wheel"
(
  unset CZERO_LIBRARY PYTHONPATH LD_LIBRARY_PATH
  export PATH=$work/venv/bin:$PATH
  mkdir "$work/elsewhere" && cd "$work/elsewhere"
  "$work/venv/bin/python" -m pip list --format=freeze
  bash "$source_dir/tests/install/use_package.sh" "$work/venv/bin"
  native=$("$work/venv/bin/python" -c 'import czero, os; print(os.path.dirname(czero.__file__))')/native
  ldd "$native"/* | grep '=> /' >"$work/loads"
  if grep -vE "$native/|/(ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so" "$work/loads"; then
    fail "the wheel loads this from the system"
  fi
  "$work/venv/bin/python" "$source_dir/tests/python/check_module.py" --czero czero --fixtures "$build/fixtures"
  "$work/venv/bin/pip" uninstall -q -y czero
  test ! -e "$native" && test ! -e "$work/venv/bin/czero" || fail "the wheel left files behind"
)
if "$work/venv/bin/pip" install -q auditwheel; then
  "$work/venv/bin/auditwheel" show "$wheel" | tee "$work/audit"
  tr -s ' \n' ' ' <"$work/audit" | grep -E 'consistent with the following platform tag: "?manylinux_' >/dev/null || fail "auditwheel calls it no manylinux wheel"
else
  echo "not here: auditwheel"
fi
echo "all packages install and work"
