#!/usr/bin/env bash
# Claim: an include crosses from one module (a top-level folder) to another only along the arrows of
# docs/design.md; a module's *_impl.h is included by that module and the tests alone; installed headers
# and examples include installed headers only; headers do not include each other in a circle; nor do the
# parts of engine/ (its folders, and each of its own files with its header); no folder has more files than a
# reader takes in at a glance.
set -uo pipefail
cd "$(dirname "$0")/../.."

declare -A may=(
  [base]=""
  [device]=""
  [layout]=""
  [formats]=""
  [comm]="device"
  [ops]="device"
  [optim]="ops"
  [model]="ops layout formats"
  [data]="formats"
  [offload]="device layout"
  [zero]="layout optim offload comm ops device"
  [checkpoint]="layout formats"
  [engine]="device layout comm formats ops optim model data offload zero checkpoint"
  [api]="device layout ops model engine"
  [tools]="engine checkpoint data model optim layout formats"
  [examples]=""
  [include]=""
)
bench_extra="ops offload comm device" # tools/czero/cmd/cmd_bench*.c only

failed=0
complain() {
  echo "$1" >&2
  failed=1
}

includes=$(grep -rnoP --include='*.[ch]' --include='*.cpp' --include='*.cu' '^\s*#\s*include\s+"\K[^"]+' \
  "${!may[@]}")
n_edges=0
while IFS=: read -r file _ target; do
  module=${file%%/*}
  to=${target%%/*}
  [ "$to" = "$target" ] && continue # a tool's own header
  n_edges=$((n_edges + 1))
  if [[ $target == *_impl.h && $module != "$to" ]]; then
    complain "$file: $target is private to $to/"
  fi
  if [ "$module" = include ] || [ "$module" = examples ]; then
    complain "$file: $target is not installed"
  fi
  [ "$module" = "$to" ] || [ "$to" = base ] && continue
  allowed=" ${may[$module]} "
  [[ $file == tools/czero/cmd/cmd_bench* ]] && allowed+=" $bench_extra "
  [[ $allowed == *" $to "* ]] || complain "$file: $module/ may not include $target"
done <<<"$includes"
[ "$n_edges" -gt 50 ] || complain "only $n_edges includes found: is this the project's root?"

# tsort names what is in a circle.
circles=$(awk -F: '$1 ~ /\.h$/ && $3 ~ /\// { print $1, $3 }' <<<"$includes" | tsort 2>&1 >/dev/null)
[ -z "$circles" ] || complain "headers include each other: $circles"

# engine/plan/order.c is of the part plan/, engine/step.c and engine/step.h are the part step.
circles=$(awk -F: '
  function part(path, n, at) {
    n = split(path, at, "/")
    if (n > 2) return at[2] "/"
    sub(/\.[ch]$/, "", at[2])
    return at[2]
  }
  $1 ~ /^engine\// && $3 ~ /^engine\// && part($1) != part($3) { print part($1), part($3) }' <<<"$includes" |
  tsort 2>&1 >/dev/null)
[ -z "$circles" ] || complain "parts of engine/ include each other: $circles"

most=28 # about 25
while read -r n folder; do
  complain "$folder: $n files; split it by subject"
done < <(git ls-files | grep -v '^tests/fixtures/' | sed 's:/[^/]*$::' | sort | uniq -c |
  awk -v most=$most '$1 > most && $2 != "docs"')

[ $failed = 0 ] && echo "$n_edges includes, all along the arrows"
exit $failed
