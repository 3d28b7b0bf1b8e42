#!/usr/bin/env bash
# Claim: `czero launch -n N -- train …` trains as one rank with the same global batch does, in every
# stage; rank 0 alone reports; evaluation counts every row once; a rank that is killed, fails, or
# means another run ends all of them at once, with the sentence that names it; SIGTERM ends them
# together; and nothing is left in /dev/shm.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-ranks-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset CZERO_LOG
export OMP_NUM_THREADS=1
shm() { ls /dev/shm | grep -vE '^czero-(test|fuzz|sim)-|vader|sm_segment|psm|ompi|osc' || true; } # other tests', and MPI's
shm >shm.before

fail() {
  echo "$1" >&2
  tail -n 20 out err >&2
  exit 1
}
config() { # micro-batch stage [more]
  printf '{"train_micro_batch_size_per_gpu": %s, "gradient_clipping": 1.0%s,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": %s}}' \
    "$1" "${3-}" "$2"
}
head -c 50000 "$source_dir/examples/data/fortunes.txt" >text.txt
head -c 1000 text.txt >eval.txt # 31 rows of 32 tokens: no number of ranks here divides it
head -c 40 text.txt >one_row.txt
for stage in 0 1 2 3; do config 2 $stage >s$stage.json; done
config 4 0 >alone.json
train=(train --model gpt2-tiny --data text.txt --seq-len 32 --shuffle off)
launch() { "$czero" launch "$@"; }
now_ms() { date +%s%3N; }
near() { # a b tolerance
  awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN {d = a - b; exit !(d <= t && -d <= t)}'
}

# ---- the same training
"$czero" "${train[@]}" --config alone.json --steps 12 --curve alone.csv --quiet \
  --eval-data eval.txt >alone.out
for stage in 0 1 2 3; do
  launch -n 2 -- "${train[@]}" --config s$stage.json --steps 12 --curve s$stage.csv --log-json \
    --eval-data eval.txt --export e$stage >out 2>err || fail "stage $stage"
  paste -d, alone.csv s$stage.csv | awk -F, 'NR > 1 {d = $2 - $7; n++; if (d < 0) d = -d
    if (!(d <= 1e-5)) exit 1} END {if (n != 12) exit 1}' || fail "stage $stage: another curve"
  [ "$(grep -c '^{"step"' out)" = 12 ] || fail "stage $stage: JSON of more than one rank"
  [ "$(grep -c 'step 12/12' err)" = 1 ] || fail "stage $stage: progress of more than one rank"
  ! grep -q '^\[rank 1\]' err || fail "stage $stage: rank 1 has something to say"
  near "$(sed -n 's/eval_loss //p' out)" "$(sed -n 's/eval_loss //p' alone.out)" 3e-6 ||
    fail "stage $stage: evaluation"
  cmp -s s0.csv s$stage.csv || fail "stage $stage: the curve is not that of stage 0"
  cmp -s e0/model.safetensors e$stage/model.safetensors || fail "stage $stage: other weights"
done

# Ranks without a row to evaluate keep the others company
for n in 1 3; do
  launch -n $n -- "${train[@]}" --config s3.json --steps 1 --init e0 --model e0 --quiet --set \
    optimizer.params.lr=0 --eval-data one_row.txt >out.$n 2>err || fail "one row on $n ranks"
done
eval_loss() { sed -n 's/^eval_loss //p' "$1"; }
[ "$(eval_loss out.3 | wc -l)" = 1 ] || fail "one eval_loss"
near "$(eval_loss out.1)" "$(eval_loss out.3)" 2e-6 || fail "one row"

# More ranks than cores; "auto" batch sizes count the ranks
echo '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 2}}' >auto.json
launch -n 5 -- "${train[@]}" --config auto.json --micro-batch 1 --accumulation 3 --steps 2 \
  --log-json >out 2>err || fail "five ranks"
grep -q '"step": 2,.*"samples": 30' out || fail "5 ranks x 3 micro-batches x 1 row x 2 steps"

# ---- what all ranks get wrong is reported once, with its numbers
expect() { # exit code, command …
  local code=$1 got=0
  shift
  "$@" >out 2>err </dev/null || got=$?
  [ "$got" = "$code" ] || fail "$*: exit $got, not $code"
}
expect 2 launch -n 3 -- "${train[@]}" --config s1.json --steps 2 --set train_batch_size=7
[ "$(grep -c 'train_batch_size 7 .* 3 ranks' err)" = 1 ] || fail "a batch that does not divide"
expect 2 launch -n 3 -- "${train[@]}" --config s1.json --steps 2 --data missing.txt
[ "$(grep -c 'missing.txt' err)" = 1 ] || fail "missing data"
expect 2 launch -n 3 -- train --config s1.json
[ "$(grep -c 'missing (see czero train --help)' err)" = 1 ] || fail "usage"
# Ranks of a host divide what memory is free
refused=("${train[@]}" --config s0.json --steps 1 --seq-len 1024 --model gpt2-xl --set
  train_micro_batch_size_per_gpu=4096)
for n in 1 4; do
  expect 3 launch -n $n -- "${refused[@]}"
  [ "$(grep -c 'It does not fit here' err)" = 1 ] || fail "the table of a refusal"
  sed -n 's/.*may still be allocated: \([0-9.]*\) \([GM]\)iB.*/\1 \2/p' err |
    awk '{print $2 == "G" ? $1 * 1024 : $1}' >free.$n
done
awk -v one="$(cat free.1)" -v four="$(cat free.4)" \
  'BEGIN {exit !(one > 0 && four < 0.35 * one && four > 0.15 * one)}' ||
  fail "free memory: $(cat free.1) MiB for one rank, $(cat free.4) for each of four"
expect 0 launch -n 3 -- train --help
[ "$(grep -c '^Usage' out)" = 1 ] || fail "help"
expect 0 launch -n 3 -- plan --config s1.json --model gpt2-tiny --seq-len 32 --world-size 3
[ "$(grep -c 'Memory of one rank' out)" = 1 ] || fail "plan"

# ---- what one rank gets wrong
cat >odd <<SH
#!/usr/bin/env bash
extra=()
[ "\$CZERO_RANK" != 1 ] || read -ra extra <odd.args
exec "$czero" "\$@" "\${extra[@]}"
SH
chmod +x odd
odd() { # arguments of rank 1 alone
  echo "$1" >odd.args
  expect "$2" launch -n 3 -- ./odd "${train[@]}" --config s1.json --steps 5 --quiet
}
odd '--set gradient_clipping=0.5' 2
grep -q 'ranks differ in the config; rank 1 has "gradient_clipping = 0.5.* where rank 0 has "gradient_clipping = 1.0' \
  err || fail "another config"
odd '--set gradient_clipping=1.0' 0 # said otherwise, the same
odd '--seq-len 16' 2
grep -q 'ranks differ in the model; rank 1 has "model gpt2-tiny, sequences up to 16" where rank 0 has .* 32"' \
  err || fail "another shape"
odd '--data missing.txt' 2
grep -q '^\[rank 1\] czero: missing.txt: cannot be opened' err || fail "rank 1's own sentence"
grep -q 'rank 1 of 3 failed: missing.txt: cannot be opened' err || fail "what the others say"
odd '--config nowhere.json' 2
grep -q 'rank 1 of 3 failed: .*nowhere.json' err || fail "no config on rank 1"

# ---- a rank is killed
start() { # ranks, arguments …: into the background, until steps are taken
  local n=$1
  shift
  rm -f run.csv
  "$czero" launch -n "$n" -- "${train[@]}" --steps 100000000 --curve run.csv --quiet "$@" >out 2>err &
  launcher=$!
  for _ in $(seq 200); do
    [ -s run.csv ] && [ "$(wc -l <run.csv)" -gt 5 ] && return
    sleep 0.05
  done
  fail "no steps"
}
ended() { # exit code, milliseconds
  local code=0 begin
  begin=$(now_ms)
  wait "$launcher" || code=$?
  [ "$code" = "$1" ] || fail "exit $code, not $1"
  [ $(($(now_ms) - begin)) -lt "$2" ] || fail "took $(($(now_ms) - begin)) ms"
  for pid in $ranks; do ! kill -0 "$pid" 2>/dev/null || fail "process $pid is left"; done
}
for victim in 0 1; do
  start 2 --config s$((victim + 2)).json
  ranks=$(pgrep -P $launcher)
  kill -KILL "$(sed -n $((victim + 1))p <<<"$ranks")"
  ended 1 2000
  grep -qE "rank $victim .*died at step [0-9]+ \([a-z ]+\)" err || fail "which rank died, where"
  grep -qE "rank $victim was killed by SIGKILL at step [0-9]+ \([a-z ]+\)" err || fail "the launcher's word"
done

# A rank that stands still: its peers wait, the launcher does not let a killed rank's peers do so
start 3 --config s1.json
ranks=$(pgrep -P $launcher)
kill -STOP "$(sed -n 3p <<<"$ranks")"
kill -KILL "$(sed -n 2p <<<"$ranks")"
ended 1 2000
grep -qE "rank 1 was killed by SIGKILL at step [0-9]+ \([a-z ]+\)" err || fail "the launcher's word"

# ---- asked to stop: together, in the middle of the run, exit 0
for signal in TERM INT; do
  start 2 --config s3.json
  ranks=$(pgrep -P $launcher)
  kill -$signal $launcher
  ended 0 5000
  ! grep -v 'more than the cores' err || fail "$signal: something to say"
done
start 3 --config s1.json
kill -STOP "$(pgrep -P $launcher | sed -n 2p)" # the others wait for it: one signal is enough
kill -TERM $launcher
ended 0 2000
start 3 --config s1.json
ranks=$(pgrep -P $launcher)
kill -STOP "$(sed -n 3p <<<"$ranks")" # the same if one rank alone is asked
kill -TERM "$(sed -n 2p <<<"$ranks")"
ended 0 2000
start 3 --config s2.json
ranks=$(pgrep -P $launcher)
kill -TERM "$(sed -n 2p <<<"$ranks")" # one rank alone was asked: all stop
ended 0 5000

# ---- over MPI (whose own leaks a sanitizer would report)
if grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then
  echo "a sanitizer's build: MPI is not tried"
elif command -v mpirun >/dev/null && [ -e "$build/libczero_mpi.so" ]; then
  root=()
  [ "$(id -u)" != 0 ] || root=(--allow-run-as-root)
  timeout 60 mpirun "${root[@]}" --oversubscribe -n 2 "$czero" "${train[@]}" --config s3.json \
    --steps 12 --curve mpi.csv --quiet >out 2>err || fail "mpirun"
  cmp -s mpi.csv s0.csv || fail "MPI gives another curve"
  echo 'localhost slots=4' >hosts
  timeout 60 "$czero" launch -n 2 --hostfile hosts -- "${train[@]}" --config s1.json --steps 12 \
    --curve mpi2.csv --quiet >out 2>err || fail "launch --hostfile"
  cmp -s mpi2.csv s0.csv || fail "launch --hostfile gives another curve"
else
  echo "mpirun or the MPI plug-in is not here: not tried"
fi

shm >shm.after
cmp -s shm.before shm.after || fail "left in /dev/shm: $(diff shm.before shm.after)"
echo "trained, evaluated, refused, killed, stopped"
