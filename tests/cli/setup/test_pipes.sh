#!/usr/bin/env bash
# Claim: what a folder holds is read only if it is a file of a sensible size: a named pipe or a device
# there is an error at once. What the user names may be a pipe; it is read to a limit, and a signal
# ends the wait for one that nothing is written to.
set -uo pipefail
build=$(cd "$1" && pwd)
czero=$build/czero
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d /tmp/czero-pipes-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }

# refuses CODES PATTERN ARGS…: in time, and within 4 GB of address space
refuses() {
  local want=$1 pattern=$2 err code
  shift 2
  err=$(ulimit -v 4000000; timeout 20 "$czero" "$@" 2>&1 >/dev/null </dev/null)
  code=$?
  [[ " $want " == *" $code "* ]] && grep -qE -- "$pattern" <<<"$err" ||
    complain "czero $*: exit $code (expected $want), stderr (expected /$pattern/): $err"
}

cp "$source_dir/configs/quickstart.json" config.json
head -c 4000 "$source_dir/examples/data/fortunes.txt" >text.txt
cp -r "$build/fixtures/models/gpt2-tiny" model

# A model folder
plan=(plan --config config.json --seq-len 8 --model)
for name in config.json tokenizer.json model.safetensors.index.json; do
  cp -r "$build/fixtures/models/gpt2-tiny" pipe
  rm -f "pipe/$name" pipe/model.safetensors
  mkfifo "pipe/$name"
  cp -r pipe device
  rm "device/$name"
  ln -s /dev/zero "device/$name"
  for folder in pipe device; do
    case $name in
    config.json) args=("${plan[@]}" $folder) ;;
    tokenizer.json) args=(train --config config.json --model gpt2-tiny --data text.txt --seq-len 8
      --steps 1 --quiet --tokenizer $folder) ;;
    *) args=(inspect $folder) ;;
    esac
    refuses '1 4' "$folder/$name: (is a special file|a link leads out)" "${args[@]}"
  done
  rm -r pipe device
done

# What the user names
"$czero" config check <(cat config.json) >/dev/null || complain "a config from a pipe"
refuses 2 'more than the 16777216 bytes' config check /dev/zero
refuses 4 'more than the 16777216 bytes' plan --config config.json --model gpt2 --seq-len 8 --profile /dev/zero
refuses 2 'more than the 67108864 bytes' plot <(printf 'step,loss\n'; yes "$(printf '%100000s' '')")
printf 'step,loss\n1,2\n2,3\n' >figures.csv
"$czero" plot <(cat figures.csv) -o a.svg >/dev/null 2>&1 && [ -s a.svg ] || complain "a plot from a pipe"

# Pruning old tags looks into each: one whose state is a pipe does not stop the run.
train=(train --config config.json --model gpt2-tiny --data text.txt --seq-len 8 --quiet --save run)
"$czero" "${train[@]}" --steps 1 >/dev/null || complain "a first save"
rm run/global_step1/czero_state.json
mkfifo run/global_step1/czero_state.json
timeout 60 "$czero" "${train[@]}" --steps 2 --save-keep 1 --force >/dev/null || complain "--save-keep beside a pipe: exit $?"
[ -d run/global_step2 ] || complain "no second save"

# A pipe that nothing is written to
mkfifo silent
for signal in INT TERM; do
  for args in "config check silent" "plan --config config.json --model gpt2 --seq-len 8 --profile silent" "plot silent"; do
    # Job control gives the program SIGINT's default; a background job of a script ignores it.
    timeout --foreground --signal=$signal --kill-after=10 1 bash -mc "exec $czero $args" >/dev/null 2>&1
    [ $? -ne 137 ] || complain "czero $args: SIG$signal did not end it"
  done
done
exit $failed
