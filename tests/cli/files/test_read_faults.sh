#!/usr/bin/env bash
# Claim: a disk that fails to give what a command reads (EIO) is a failure at run time, exit code 1, whichever read it is:
# never a damaged file (4) or a mistake of the user's (2), and never an answer from less than all. fsck names the file that
# could not be read, and damage in another file is still exit code 4.
. "$(dirname "$0")/../../support/command.sh"

cc=${CC:-cc}
command -v "$cc" >/dev/null || { echo "no compiler here: not tried"; exit 77; }
grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt" && { echo "a sanitizer's build: not tried"; exit 77; }
"$cc" -shared -fPIC -O1 -o fail.so "$source_dir/tests/support/fail_preload.c" -ldl

mkdir model
cat >model/config.json <<'E'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 16,
 "n_embd": 8, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
E
cat >ds.json <<'E'
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 1}}
E
head -c 2000 "$source_dir/examples/data/fortunes.txt" >text.txt
echo '{"prompt": "a", "completion": "b"}' >rows.jsonl
gzip -k rows.jsonl
export CZERO_IO=threads
"$czero" train --config ds.json --data text.txt --tokenizer bytes --seq-len 8 --quiet --model model --init random --steps 1 \
  --save run >out 2>err || fail 'the run'
"$czero" export run hf --quiet >out 2>err || fail 'the export'

with_fault() { # READ ARGUMENTS…
  local n=$1
  shift
  FAIL_AT=$n FAIL_HOW=5 FAIL_READS=1 LD_PRELOAD=$work/fail.so timeout 20 "$czero" "$@" >out 2>err
}
try() { # ARGUMENTS…: fails each of the command's reads, one at a time
  local n=0 n_calls code
  FAIL_COUNT=count FAIL_READS=1 LD_PRELOAD=$work/fail.so "$czero" "$@" >whole 2>err || fail "$*: without a fault"
  n_calls=$(cat count)
  [ "$n_calls" -gt 0 ] || fail "$*: reads nothing"
  while [ $((n += 1)) -le "$n_calls" ]; do
    code=0
    with_fault $n "$@" || code=$?
    case $code in
      1) grep -q 'Input/output error' out err || fail "$*: EIO at read $n of $n_calls: the reason is not named" ;;
      0) cmp -s whole out || fail "$*: EIO at read $n of $n_calls changes the answer" ;;
      *) fail "$*: EIO at read $n of $n_calls: exit code $code" ;;
    esac
  done
}
try fsck run
try fsck run --json
try fsck hf
try inspect run
try inspect hf/model.safetensors
try data show rows.jsonl --tokenizer bytes
try data show rows.jsonl.gz --tokenizer bytes
try config check ds.json
try generate --model hf --tokenizer bytes --prompt a --max-new-tokens 2 --raw --temperature 0

# A resume reads all that it needs: no manifest, state or config that cannot be read is taken for one that is absent.
resume=(train --config ds.json --data text.txt --tokenizer bytes --seq-len 8 --quiet --model model --resume run --steps 2)
FAIL_COUNT=count FAIL_READS=1 LD_PRELOAD=$work/fail.so "$czero" "${resume[@]}" >out 2>err || fail 'the resume'
n=0 n_calls=$(cat count)
while [ $((n += 1)) -le "$n_calls" ]; do
  code=0
  with_fault $n "${resume[@]}" || code=$?
  [ "$code" = 1 ] && grep -q 'Input/output error' err || fail "a resume with EIO at read $n of $n_calls: exit code $code: $(cat err)"
done

# The marks of a Parquet file: one that cannot be read is not the mark of a text.
printf 'PAR1........PAR1' >rows.parquet
FAIL_COUNT=count FAIL_READS=1 LD_PRELOAD=$work/fail.so "$czero" data show rows.parquet --tokenizer bytes >out 2>whole || :
n=0 n_faults=0 n_calls=$(cat count)
while [ $((n += 1)) -le "$n_calls" ]; do
  with_fault $n data show rows.parquet --tokenizer bytes && fail 'marks alone are read'
  if grep -q 'rows.parquet.*Input/output error' err; then
    n_faults=$((n_faults + 1))
  else
    cmp -s whole err || fail "a mark with EIO at read $n: $(cat err)"
  fi
done
[ $n_faults -ge 2 ] || fail "$n_faults of two marks that cannot be read are told"

# Damage in one file and a fault at another: both are told, and damage decides.
states=run/$(cat run/latest)/zero_pp_rank_0_mp_rank_00_optim_states.pt
printf x | dd of="$states" bs=1 seek=$(($(stat -c %s "$states") / 2)) conv=notrunc status=none
n_both=0 n=0
while [ $((n += 1)) -le 8 ]; do
  code=0
  with_fault $n fsck run || code=$?
  [ "$code" = 4 ] || [ "$code" = 1 ] || fail "damage and EIO at read $n: exit code $code"
  ! grep -q 'Input/output error' out || ! grep -q 'optim_states.pt: .*damaged' out || n_both=$((n_both + 1))
  ! grep -q 'damaged' out || [ "$code" = 4 ] || fail "damage and EIO at read $n: exit code $code"
done
[ $n_both -gt 0 ] || fail 'damage beside a fault is not told'
