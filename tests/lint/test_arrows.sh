#!/usr/bin/env bash
# Claim: an include crosses from one module to another only along the arrows of the design
# (docs/design.md), and a module's *_impl.h is included only by that module and its tests.
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
  [tools]="engine checkpoint data model layout"
  [examples]="engine checkpoint data model layout ops"
)
bench_extra="ops offload comm device" # tools/czero/cmd_bench*.c only

failed=0
complain() {
  echo "$1" >&2
  failed=1
}

n_edges=0
while IFS=: read -r file _ target; do
  module=${file%%/*}
  to=${target%%/*}
  [ "$to" = "$target" ] && continue # not folder-qualified: a tool's own header
  n_edges=$((n_edges + 1))
  if [[ $target == *_impl.h && $module != "$to" ]]; then
    complain "$file: $target is private to $to/"
  fi
  [ "$module" = "$to" ] || [ "$to" = base ] && continue
  allowed=" ${may[$module]} "
  [[ $file == tools/czero/cmd_bench* ]] && allowed+=" $bench_extra "
  [[ $allowed == *" $to "* ]] || complain "$file: $module/ may not include $target"
done < <(grep -rnoP --include='*.[ch]' --include='*.cu' '^\s*#\s*include\s+"\K[^"]+' \
  base device layout formats comm ops optim model data offload zero checkpoint engine tools examples)

[ "$n_edges" -gt 50 ] || complain "only $n_edges includes found: is this the project's root?"
[ $failed = 0 ] && echo "$n_edges includes, all along the arrows"
exit $failed
