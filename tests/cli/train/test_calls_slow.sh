#!/usr/bin/env bash
# Claim: a run that saves, and an export over a model, may be killed at each call that writes, syncs, names or
# removes, and each of these calls and each read may fail with EIO or ENOSPC: `latest` names a whole checkpoint,
# every tag passes fsck, the next run or export works and leaves nothing of the broken one. Four runs in one folder
# of checkpoints do no harm.
. "$(dirname "$0")/../../support/command.sh"

cc=${CC:-cc}
command -v "$cc" >/dev/null || { echo "no compiler here: not tried"; exit 77; }
"$cc" -shared -fPIC -O1 -o fail.so "$source_dir/tests/support/fail_preload.c" -ldl
grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt" && { echo "a sanitizer's build: not tried"; exit 77; }

head -c 4000 "$source_dir/examples/data/fortunes.txt" >text.txt
mkdir model
cat >model/config.json <<'E'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 16,
 "n_embd": 16, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
E
echo '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
export CZERO_IO=threads
run() { # STEPS ARGUMENTS…: saves into ckpt
  local steps=$1
  shift
  "$@" "$czero" train --model model --init random --config ds.json --data text.txt --tokenizer bytes --seq-len 8 \
    --steps "$steps" --quiet --save ckpt --save-keep 2 --resume auto >out 2>err
}
export_to() { "$@" "$czero" export ckpt hf --force --max-shard-size "$size" --quiet >out 2>err; }

# The tags are whole, `latest` names one, and a run continues from it.
sound() { # WHAT
  local tag
  [ -e "ckpt/$(cat ckpt/latest)/czero_manifest.json" ] || fail "$1: latest names $(cat ckpt/latest)"
  for tag in ckpt/global_step*; do
    "$czero" fsck "$tag" >out 2>err || fail "$1: fsck of $tag"
  done
  run 4 || fail "$1: the next run"
  [ "$(cat ckpt/latest)" = global_step4 ] || fail "$1: the next run saved nothing"
  ! compgen -G 'ckpt/.*.saving' && ! compgen -G 'ckpt/.*.deleting*' && ! compgen -G 'ckpt/*.tmp*' &&
    ! compgen -G 'ckpt/model/*.tmp*' || fail "$1: something is left"
}
try() { # COMMAND NAME HOW READS: over a copy of `before`, at each call
  local how=$3 reads=$4 n=0 n_calls code
  rm -rf ckpt hf
  cp -a before/. .
  FAIL_COUNT=count FAIL_READS=$reads $1 env LD_PRELOAD="$work/fail.so" || fail "$2: without a fault"
  n_calls=$(cat count)
  [ "$n_calls" -gt 10 ] || fail "$2: only $n_calls calls"
  while [ $((n += 1)) -le "$n_calls" ]; do
    rm -rf ckpt hf
    cp -a before/. .
    code=0
    (FAIL_AT=$n FAIL_HOW=$how FAIL_READS=$reads $1 env LD_PRELOAD="$work/fail.so") 2>/dev/null || code=$?
    case $how:$code:$reads in
      kill:137:0 | kill:0:0 | [0-9]*:[0-4]:0 | 5:[01]:1) ;; # a read that fails is no mistake of the user's
      *) fail "$2, $how at call $n of $n_calls: exit code $code" ;;
    esac
    $5 "$2, $how at call $n of $n_calls"
  done
  echo "$2, $how: $n_calls calls"
}
saving() { run 3 "$@"; }

# An export leaves the old model, or the new one, or no index; the next one is whole and leaves nothing else.
exported() { # WHAT
  export_to env || fail "$1: the next export"
  diff -r whole hf >/dev/null || fail "$1: the next export differs: $(diff -rq whole hf)"
}

run 2 env || fail "the first run"
mkdir before
cp -a ckpt before
for how in kill 5 28; do try saving save $how 0 sound; done
try saving 'reads of a save' 5 1 sound
for size in none 20KB; do
  rm -rf ckpt hf before/hf whole
  cp -a before/. .
  export_to env || fail "the first export"
  cp -a hf before/hf
  cp -a hf whole
  for how in kill 5 28; do try export_to "export in $size" $how 0 exported; done
  try export_to "reads of an export in $size" 5 1 exported
done

# Four runs in one folder: one has it, the others say so.
rm -rf ckpt
cp -a before/. .
pids=()
for i in 1 2 3 4; do
  "$czero" train --model model --init random --config ds.json --data text.txt --tokenizer bytes --seq-len 8 \
    --steps 400 --quiet --save ckpt --save-interval 20 --save-keep 2 --resume auto >out.$i 2>err.$i &
  pids+=($!)
done
n_done=0
for i in 1 2 3 4; do
  if wait "${pids[$((i - 1))]}"; then
    n_done=$((n_done + 1))
  else
    grep -q 'is in use by' err.$i || fail "run $i: $(cat err.$i)"
  fi
done
[ $n_done -ge 1 ] || fail "no run of four ended well"
for tag in ckpt/global_step*; do "$czero" fsck "$tag" >out 2>err || fail "four runs: fsck of $tag"; done
echo "four runs: $n_done ended well"
