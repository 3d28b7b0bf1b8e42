#!/usr/bin/env bash
# Claim: threads of a run are bound to cores of its affinity mask, unbound ranks divide the cores of their mask, OMP_PROC_BIND and --bind none leave threads alone; and on two NUMA nodes (hwloc
# is made to believe in them) a run says where it is and computes the same.
set -euo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-place-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY CZERO_BIND
export CZERO_LOG=step

fail() {
  echo "$1" >&2
  cat err >&2
  exit 1
}
[ "$(taskset -c 0-1 nproc 2>/dev/null || true)" = 2 ] ||
  { echo "skipped: processors 0 and 1 are needed" && exit 77; }

echo '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"}, "gradient_clipping": 0,
  "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}' >config.json
head -c 3000 /dev/zero | tr '\0' 'x' >text.txt
flags=(--config config.json --model "$build/fixtures/models/gpt2-tiny" --data text.txt
  --seq-len 32 --steps 3 --quiet)
train() { # name of the curve, words in front of czero
  local curve=$1
  shift
  "$@" "$czero" train "${flags[@]}" --curve "$curve" 2>err >out || fail "$* czero train: exit $?"
}
says() { grep -qE "$1" err || fail "no message \"$1\""; }

# ---- the mask
train one.csv taskset -c 1
says '1 thread on core 1 of NUMA node'
train plain.csv taskset -c 0-1
says '2 threads on cores 0-1 of NUMA node'
train left.csv env OMP_PROC_BIND=false taskset -c 0-1
says '2 threads on cores 0-1 of NUMA node.*, not bound'
cmp plain.csv left.csv
train own.csv env OMP_PROC_BIND=true taskset -c 0-1
says '2 threads on cores 0-1 of NUMA node.*, not bound'
cmp plain.csv own.csv

# ---- two nodes
export HWLOC_XMLFILE=$source/tests/fixtures/topologies/two_nodes.xml HWLOC_THISSYSTEM=1
train both.csv taskset -c 0-1
says '2 threads on cores 0-1 of NUMA nodes 0-1$'
cmp plain.csv both.csv
train first.csv taskset -c 0
says '1 thread on core 0 of NUMA node 0$'
cmp one.csv first.csv
train few.csv env OMP_NUM_THREADS=1 taskset -c 0-1
says '1 thread on core [01] of NUMA node [01]$' # the one it happens to be on
cmp one.csv few.csv

# ---- ranks
ranks() { # name of the curve, words of launch
  local curve=$1
  shift
  taskset -c 0-1 "$czero" launch "$@" -- train "${flags[@]}" --curve "$curve" 2>err >out ||
    fail "czero launch $*: exit $?"
}
ranks bound.csv -n 2
says '1 thread on core 0 of NUMA node 0$'
ranks free.csv -n 2 --bind none
says '1 thread on core 0.* of NUMA node.*, not bound$'
cmp bound.csv free.csv
CZERO_BIND=none ranks three.csv -n 3
says 'not bound'
