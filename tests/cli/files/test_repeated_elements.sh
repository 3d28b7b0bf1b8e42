#!/usr/bin/env bash
# Claim: small torch files whose views repeat elements (a stride of 0) are listed, but inspect --sums and zero_to_fp32
# refuse them in no time when all elements would take more than 16 times the files' bytes and 16 MiB; views that
# repeat less, as torch.save writes them of expanded tensors, are read.
set -uo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d /tmp/czero-repeat-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
python3 "$here/repeated_elements.py" || exit 1
failed=0
expect() { # CODE TEXT PROGRAM ARGUMENTS…
  local want=$1 text=$2 code=0
  shift 2
  (ulimit -f 65536; timeout 10 "$@") >out 2>err || code=$?
  if [ $code != "$want" ] || ! cat out err | grep -qF -- "$text"; then
    echo "exit $code instead of $want, wanted '$text': $*: $(head -c 400 err)" >&2
    failed=1
  fi
}
[ "$(stat -c %s x.pt)" -lt 1000 ] || { echo "x.pt is large" >&2; failed=1; }
expect 0 "(33554432, 33554432)" "$build/czero" inspect x.pt
expect 0 "33554432" "$build/czero" inspect x.pt --json
expect 2 "views repeat elements" "$build/czero" inspect x.pt --sums
expect 2 "views repeat elements" "$build/czero" inspect x.pt --sums --json
expect 2 "views repeat elements" "$build/czero" inspect many.pt --sums
expect 0 "no damage" "$build/czero" fsck x.pt
expect 0 "mean 1" "$build/czero" inspect small.pt --sums
expect 0 "mask" "$build/czero" inspect ck_large
expect 2 "views repeat elements" "$build/czero" inspect ck_large --sums
expect 2 "views repeat elements" "$build/zero_to_fp32" ck_large weights
expect 2 "views repeat elements" "$build/zero_to_fp32" ck_large weights --safe_serialization
[ ! -e weights ] || { echo "an output folder stays: $(ls weights)" >&2; failed=1; }
expect 0 "mean 1" "$build/czero" inspect ck --sums
expect 0 "wrote 1 file" "$build/zero_to_fp32" ck weights --safe_serialization
[ $failed = 0 ] && echo "repeated elements are bounded"
exit $failed
