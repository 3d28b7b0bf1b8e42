#!/usr/bin/env bash
# Check that README's two commands work on a bare machine: make a bare root of Debian or Ubuntu with
# debootstrap, clone this repository's HEAD into it and nothing else, run scripts/quickstart.sh and
# scripts/test.sh in it, and print the seconds of each stage, the numbers of tests that passed, failed and were
# skipped, and the reason of each skip.
#   scripts/bare_check.sh                     Debian 12
#     --suite NAME     bookworm (default), or noble for Ubuntu 24.04
#     --command "…"    run this in the clone instead of the two commands
#     --root DIR       make the root there, or use an existing root with its packages
#                      (default: a new folder of /tmp, or of TMPDIR)
#     --keep           keep the root (an existing root is always kept)
#     --mirror URL     mirror for packages (default: the mirror of this machine's apt; of Debian's mirror
#                      /ubuntu beside /debian for noble)
#     --keyring FILE   keys that sign the suite (default: those of debian-archive-keyring or ubuntu-keyring)
# What was run on 26 November 2026: on bookworm both commands at 0931ee7d (338 tests passed, none failed, one was
# skipped: Parquet without Arrow; a quarter of an hour beside other work); on noble, at an earlier commit, quickstart.sh, the whole build and 33 of the 229 tests (products,
# models, optimizers, recorded runs, resuming, lint, install), which pass. Debian has no package with Ubuntu's keys: take
# ubuntu-archive-keyring.gpg from ubuntu-keyring, compare its fingerprints with those that Ubuntu publishes, and name
# the file with --keyring.
# The log is bare_check.log in the current folder. A full run takes about 1.5 GB of disk and, on two cores, a
# quarter of an hour. Exit: 0 all commands succeeded, 1 one failed, 2 this machine cannot do it.
# Needs root, debootstrap and its keys (Debian: apt install debootstrap debian-archive-keyring), mount namespaces.
# CUDA is not visible inside: the root has its own /usr. The mounts are in a namespace of their own and disappear
# with it, however this script ends; the folder stays only after --keep or SIGKILL.
set -uo pipefail
self=$(readlink -f "$0")
repository=$(cd "$(dirname "$self")/.." && pwd)

die() {
  echo "bare_check: $1" >&2
  exit 2
}

suite=bookworm root='' keep='' commands=() mirror='' keyring='' inside=''
while [ $# -gt 0 ]; do
  case $1 in
    --suite | --root | --command | --mirror | --keyring) [ $# -ge 2 ] || die "$1 needs a value" ;;&
    --suite) suite=$2 && shift ;;
    --root) root=$2 && shift ;;
    --command) commands+=("$2") && shift ;;
    --mirror) mirror=$2 && shift ;;
    --keyring) keyring=$2 && shift ;;
    --keep) keep=1 ;;
    --inside) inside=1 ;; # the namespace: only this script says so
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self" && exit 0 ;;
    *) die "unknown option $1; --help lists them" ;;
  esac
  shift
done
case $suite in
  bookworm) distribution=debian keys=/usr/share/keyrings/debian-archive-keyring.gpg components=main ;;
  noble) distribution=ubuntu keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg components=main,universe ;;
  *) die "no suite $suite: bookworm and noble are known" ;;
esac
: "${keyring:=$keys}"

# What apt of this machine uses for its own distribution.
find_mirror() {
  local uris
  uris=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null)
  case $distribution in
    debian) awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }' <<<"$uris" ;;
    ubuntu) awk '$1 == "Ubuntu" && $2 !~ /security/ { print $2; found = 1; exit }
      $1 == "Debian" && !beside { beside = $2; sub(/debian\/?$/, "ubuntu/", beside) }
      END { if (!found) print beside }' <<<"$uris" ;;
  esac
}

now() { date +%s; }
stages=()
stage() { # name, command…
  local begin rc
  begin=$(now)
  echo "== $1"
  "${@:2}"
  rc=$?
  stages+=("$(printf '%-58s %6d %s' "$1" $(($(now) - begin)) "$([ $rc = 0 ] || echo "failed: exit $rc")")")
  return $rc
}

COMPLETE=etc/bare_check-suite # in a root that debootstrap has finished
bootstrap() {
  local script=()
  [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=(/usr/share/debootstrap/scripts/gutsy) # Ubuntu's base
  debootstrap --variant=minbase --components="$components" --keyring="$keyring" "$suite" "$root" "$mirror" \
    "${script[@]}" >"$root.debootstrap" 2>&1 || {
    tail -5 "$root.debootstrap"
    rm -f "$root.debootstrap"
    return 1
  }
  rm -f "$root.debootstrap"
  echo "$suite" >"$root/$COMPLETE"
}

# The root is a mount point, as it is on a machine: tests that mount something first make it private to themselves.
# Devices, processes and the network are this machine's, shared memory is the root's own.
prepare() {
  mount --bind "$root" "$root" && mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" &&
    mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=1777 shm "$root/dev/shm" || return 1
  cat /etc/resolv.conf >"$root/etc/resolv.conf" 2>/dev/null
  cat /etc/hosts >"$root/etc/hosts"
  apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries)' | grep -v ' "";$' >"$root/etc/apt/apt.conf.d/00bare-check"
  return 0
}

clone() {
  rm -rf "$root/root/czero"
  git clone -q "file://$repository" "$root/root/czero"
}

# Every line of the log carries the seconds since the command began.
enter() { # command
  local begin rc
  begin=$(now)
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb \
    chroot "$root" bash -c "cd /root/czero && $1" </dev/null 2>&1 |
    while IFS= read -r line; do printf '%5d %s\n' $(($(now) - begin)) "$line"; done | tee -a "$log" |
    grep --line-buffered -vE '^ *[0-9]+ \[[0-9]+/[0-9]+\] |Start +[0-9]+:|Test +#[0-9]+: .* Passed' # ninja's lines and ctest's
  rc=${PIPESTATUS[0]}
  return "$rc"
}

# How each test ended is in ctest's output (the log), why one was skipped in what it printed (LastTest.log).
report_tests() {
  local result=$root/root/czero/build/Testing/Temporary/LastTest.log
  [ -e "$result" ] || return 0
  awk '
    FNR == 1 { file++ }
    file == 1 && match($0, /^[0-9]+\/[0-9]+ Test: /) { name = substr($0, RLENGTH + 1) }
    file == 1 && tolower($0) ~ /skip/ && !(name in reason) { reason[name] = $0; sub(/^.*skipped: */, "", reason[name]) }
    file == 2 && match($0, /^ *[0-9]+ +[0-9]+\/[0-9]+ Test +#[0-9]+: /) {
      name = $0
      sub(/^ *[0-9]+ +[0-9]+\/[0-9]+ Test +#[0-9]+: /, "", name)
      sub(/ .*/, "", name)
      if (/ Passed +[0-9.]+ sec/) n_passed++
      else if (/\*\*\*Skipped/) { n_skipped++; skips = skips "  " name ": " (name in reason ? reason[name] : "?") "\n" }
      else { n_failed++; failures = failures "  " name "\n" }
    }
    END {
      if (n_passed + n_failed + n_skipped == 0) exit
      printf "tests: %d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped
      if (failures != "") printf "failed:\n%s", failures
      if (skips != "") printf "skipped:\n%s", skips
    }' "$result" "$log"
}

run_inside() {
  local command failed=0
  [ -e "$root/$COMPLETE" ] || stage "bare root of $suite (debootstrap)" bootstrap || die "debootstrap failed"
  prepare || die "this machine does not allow the mounts that a root needs"
  stage "clone of $(git -C "$repository" log -1 --format=%h)" clone || die "the repository cannot be cloned"
  for command in "${commands[@]}"; do
    stage "$command" enter "$command" || failed=1
  done
  echo
  printf 'bare_check: %s, commit %s, %s cores\n' "$(. "$root/etc/os-release" && echo "$PRETTY_NAME")" \
    "$(git -C "$root/root/czero" log -1 --format='%h %s')" "$(nproc)"
  printf '%-58s %6s\n' stage seconds
  printf '%s\n' "${stages[@]}"
  report_tests
  [ $failed = 0 ] || grep -E '\[ *(FAILED|failed)|^ *[0-9]+ (FAILED|.*error:|.*: F:)|\*\*\*Failed' "$log" | head -40
  return $failed
}

{ # read as a whole: this file may change while the script runs
  log=$PWD/bare_check.log
  [ ${#commands[@]} -gt 0 ] || commands=(scripts/quickstart.sh scripts/test.sh)
  [ -n "$mirror" ] || mirror=$(find_mirror)
  if [ -n "$inside" ]; then
    run_inside
    exit
  fi

  [ "$(id -u)" = 0 ] || die "run as root: debootstrap, mounts and chroot need it"
  command -v debootstrap >/dev/null || die "debootstrap is missing: apt install debootstrap"
  [ -n "$mirror" ] || die "apt of this machine names no mirror for $distribution: use --mirror URL"
  unshare --mount --pid --fork true 2>/dev/null || die "this machine allows no mount namespace (unshare --mount --pid)"
  made=''
  if [ -z "$root" ]; then
    root=$(mktemp -d "${TMPDIR:-/tmp}/czero-bare-XXXXXX") && made=1
    chmod 755 "$root"
  elif [ ! -e "$root/$COMPLETE" ]; then
    [ -z "$(ls -A "$root" 2>/dev/null)" ] || die "$root is neither empty nor a root that this script has made"
    mkdir -p "$root" && made=1
  elif [ "$(cat "$root/$COMPLETE")" != "$suite" ]; then
    die "$root is a root of $(cat "$root/$COMPLETE"): use --suite"
  fi
  root=$(readlink -f "$root")
  [ -n "$(ls -A "$root")" ] || [ -e "$keyring" ] ||
    die "$keyring is missing: install the package that holds it, or name the file with --keyring"
  : >"$log"

  child=''
  cleanup() {
    [ -z "$child" ] || kill -KILL "$child" 2>/dev/null
    wait 2>/dev/null
    if [ -n "$made" ] && [ -z "$keep" ]; then rm -rf --one-file-system "$root"; else echo "The root is $root"; fi
  }
  trap cleanup EXIT
  trap 'exit 1' INT TERM HUP
  args=(--inside --suite "$suite" --root "$root" --mirror "$mirror" --keyring "$keyring")
  for command in "${commands[@]}"; do args+=(--command "$command"); done
  # Killed with this script, and everything inside with it: mounts and processes end with their namespaces.
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash "$self" "${args[@]}" &
  child=$!
  wait "$child"
  rc=$?
  child=''
  exit $rc
}
