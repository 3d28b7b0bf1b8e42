#!/usr/bin/env bash
# Claim: `czero tune` without a model tells of each preset whether it fits, in seconds, with times and
# DeepSpeed's own answer; with one it lists what fits, writes the best as a config that plans to what
# was promised and trains, says what is missing when nothing fits (exit 3), and measures what can be
# measured. A size alone stands for a known GPU. With --lora the same of an adapter.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-tune-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
value() { grep -o "\"$1\": [0-9]*" "$work/out" | head -1 | grep -o '[0-9]*$'; }

# presets: fits or not, how, peaks, time; no figure is unknown. User time, because machines are busy.
TIMEFORMAT=%U
took=$( { time "$czero" tune --all --gpu-memory 24GB --host-memory 64GB >"$work/out" 2>"$work/err"; } 2>&1 )
awk -v t="$took" 'BEGIN { exit !(t < 15) }' || complain "the table takes $took s"
grep -q "RTX 4090" "$work/err" || complain "which GPU is not said: $(cat "$work/err")"
grep -q "published rates" "$work/out" || complain "where times come from is not said"
grep -q "^gpt2  .* 124 M  yes .* [0-9.]* s .* stage 0" "$work/out" || complain "gpt2: $(grep ^gpt2 "$work/out")"
grep -q "^llama-70b  .* 69.0 B  no .* more host memory" "$work/out" || complain "llama-70b: $(grep ^llama-70b "$work/out")"
grep -q "^llama-7b .* 0.5 + 169.4 " "$work/out" || complain "DeepSpeed's answer for 7B: $(grep ^llama-7b "$work/out")"
grep '^[a-z0-9.-]* *[0-9.]* [MB] ' "$work/out" >"$work/rows"
[ "$(wc -l <"$work/rows")" -ge 15 ] || complain "$(wc -l <"$work/rows") presets"
grep -q '?' "$work/rows" && complain "a question mark: $(grep '?' "$work/rows")"
awk '{ n = $2 * ($3 == "B" ? 1000 : 1); if (n < before) exit 1; before = n }' "$work/rows" || complain "not by size"
"$czero" tune --gpu h100 --host-memory 512GB --nvme 2TB --json >"$work/out" || complain "JSON: exit $?"
python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); m = {x["model"]: x for x in r["models"]}
assert r["gpu_memory_bytes"] == 80e9 and r["rates"] == "assumed", r
assert m["llama-7b"]["fits"] and m["llama-7b"]["seconds_per_million_tokens"] > 1, m["llama-7b"]
assert all(x["seconds_per_million_tokens"] for x in m.values() if x["fits"])' "$work/out" || complain "JSON: $(cat "$work/out")"
"$czero" tune --all --host-memory 64GB --seq-len 64 >"$work/out" 2>"$work/err" || complain "a CPU: exit $?"
grep -q "^gpt2 .* yes " "$work/out" || complain "a CPU trains gpt2"
# the answer first, then the largest that fit, on one screen of 80 columns and 24 lines
"$czero" tune --gpu-memory 24GB --host-memory 64GB >"$work/out" 2>"$work/err" || complain "the answer: exit $?"
head -1 "$work/out" | grep -q '^Fits: all weights up to [a-z0-9.-]* ([0-9.]* B); an adapter (--lora rank=16,alpha=32) up to ' || complain "no verdict: $(head -1 "$work/out")"
[ "$(wc -l <"$work/out")" -le 20 ] || complain "the answer has $(wc -l <"$work/out") lines"
grep -q ' [0-9]* do not fit (--all lists all)[.]$' "$work/out" || complain "what does not fit is not counted: $(cat "$work/out")"
first=$(head -1 "$work/out")
"$czero" tune --gpu-memory 24GB --host-memory 64GB --json >"$work/out" 2>"$work/err" || complain "JSON: exit $?"
[ "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"])' "$work/out")" = "$first" ] || complain "JSON has another verdict than $first"
# nothing fits: no head of a table without rows
"$czero" tune --host-memory 2MB >"$work/out" 2>"$work/err" && code=0 || code=$?
[ $code = 3 ] || complain "nothing fits: exit $code"
grep -q "1M tokens" "$work/out" && complain "a head without rows: $(cat "$work/out")"
grep -q "^[0-9]* do not fit (--all lists all)[.]$" "$work/out" || complain "nothing is counted: $(cat "$work/out")"
# an adapter of names that not every preset has leaves those presets out
"$czero" tune --lora rank=16,targets=q_proj --host-memory 64GiB >"$work/out" 2>"$work/err" || complain "adapters of q_proj: exit $?: $(cat "$work/err")"
head -1 "$work/out" | grep -q "^Fits: adapters up to " || complain "adapters of q_proj: $(cat "$work/out")"
grep -q "^gpt2" "$work/out" && complain "gpt2 has no q_proj"
"$czero" tune --lora rank=16,targets=no_proj --host-memory 64GiB >"$work/out" 2>"$work/err" && code=0 || code=$?
[ $code = 2 ] && grep -q "no_proj" "$work/err" || complain "an adapter of nothing: exit $code: $(cat "$work/err")"
"$czero" tune --gpu-memory 24GB --host-memory 64GB >"$work/out" 2>"$work/err" || complain "the answer: exit $?"
sed 1,5d "$work/out" | awk 'length > 80 { exit 1 }' || complain "the rows are wider than 80"
grep -q "No GPU has run" "$work/out" || complain "whether a GPU has run this is not said"

# a large model that does not fit, which takes the longest: the disk that would do is searched for, too
took=$( { time "$czero" tune --model qwen3-8b --seq-len 2048 --gpu-memory 24GB --host-memory 64GB >"$work/out" 2>"$work/err"; } 2>&1 )
awk -v t="$took" 'BEGIN { exit !(t < 15) }' || complain "qwen3-8b takes $took s"
head -1 "$work/out" | grep -q '^Fits: an adapter (--lora rank=16,alpha=32): 2[0-9.]* GiB of GPU, .* tokens/s predicted. All weights need [0-9.]* GiB more host memory, or NVMe' ||
  complain "8B on 24 GB: $(head -1 "$work/out")"
grep -q '^czero tune: not all weights fit\. The closest configuration is ' "$work/err" || complain "an adapter fits, but: $(cat "$work/err")"
# what the first line says fits is what -o writes, and the exit code says so
"$czero" tune --model gpt2-1.3b --seq-len 512 --host-memory 12GB -o "$work/fits.json" >"$work/out" 2>"$work/err" || complain "an adapter fits: exit $?"
grep -q '^Fits: an adapter' "$work/out" && grep -q '"lora"' "$work/fits.json" && grep -q "The best is in .*fits.json" "$work/err" || complain "-o of an adapter: $(cat "$work/out" "$work/err")"
"$czero" plan --config "$work/fits.json" --model gpt2-1.3b --seq-len 512 --host-memory 12GB >"$work/out" 2>"$work/err" || complain "the adapter's config: $(cat "$work/err")"
"$czero" tune --model gpt2 --seq-len 64 --host-memory 16GB -o "$work/random.json" >"$work/out" 2>"$work/err" || complain "gpt2: $(cat "$work/err")"
grep -q "the weights of gpt2 are random at first" "$work/err" || complain "a preset's recipe: $(cat "$work/err")"
# a terminal of 80 columns has no wider line
if command -v script >/dev/null; then
  LC_ALL=C.UTF-8 script -qec "stty cols 80 rows 24; $czero tune --model gpt2-1.3b --seq-len 512 --gpu-memory 8GB --host-memory 64GB" /dev/null >"$work/out" </dev/null
  python3 -c 'import re, sys
lines = [re.sub(r".*\x1b\[K", "", l.rstrip("\r\n")) for l in open(sys.argv[1], encoding="utf-8", newline="\n")]
wide = [l for l in lines if len(l) > 80]
assert len(lines) > 10 and not wide, wide or lines' "$work/out" || complain "a line is wider than the terminal"
fi

# no profile: published rates of a GPU of that size, and that is reported
"$czero" tune --model gpt2-1.3b --seq-len 512 --gpu-memory 24GB --host-memory 64GB \
  -o "$work/ds.json" >"$work/out" 2>"$work/err" || complain "exit $?: $(cat "$work/err")"
grep -q "by RTX 4090 (published rates) and a typical desktop (assumed)" "$work/out" || complain "the order is not explained"
grep -q "micro-batch [0-9]* \(×\|x\) [0-9]*: [0-9]* rows at a time, [0-9]* times an optimizer step" "$work/out" || complain "no legend"
grep -q "^  1 .* stage " "$work/out" || complain "no first line"
grep -q "$work/ds.json" "$work/err" || complain "where the best went is not said"
"$czero" config check "$work/ds.json" 2>"$work/err" || complain "the config: $(cat "$work/err")"
"$czero" tune --model gpt2-1.3b --seq-len 512 --gpu-memory 24GB --host-memory 64GB --json >"$work/out"
gpu=$(value gpu_bytes)
grep -q '"verdict": "Fits: all weights: [0-9.]* GiB of GPU, ' "$work/out" || complain "JSON has no verdict: $(head -3 "$work/out")"
"$czero" plan --config "$work/ds.json" --model gpt2-1.3b --seq-len 512 --device cuda --strict --json >"$work/out"
[ "$(value device_peak_bytes)" = "$gpu" ] || complain "planned $(value device_peak_bytes), promised $gpu"
[ "$gpu" -le 24000000000 ] || complain "$gpu bytes are more than 24 GB"

# a small host and a disk: what was chosen trains there, within the budget
"$czero" tune --model gpt2-tiny --seq-len 64 --host-memory 300MiB --precision fp32 --batch 8 --all \
  --measure --measure-count 1 -o "$work/cpu.json" >"$work/out" 2>"$work/err" || complain "exit $?: $(cat "$work/err")"
grep -q "^measured 1: .* tokens/s" "$work/err" || complain "nothing was measured: $(cat "$work/err")"
head -c 65536 /dev/urandom | base64 >"$work/text"
"$czero" train --config "$work/cpu.json" --model gpt2-tiny --data "$work/text" --tokenizer bytes --seq-len 64 \
  --steps 2 --quiet >/dev/null 2>"$work/err" || complain "training: $(cat "$work/err")"

# an adapter: fits where the model needs recomputation and a smaller micro-batch or does not fit at all; its config is
# taken by plan and train, which writes the adapter; presets, too
"$czero" tune --model llama-160m --seq-len 64 --host-memory 1200MiB >"$work/out" 2>"$work/err"
head -1 "$work/out" | grep -q '^Fits: an adapter' || complain "the whole model fits: $(cat "$work/out")"
"$czero" tune --model llama-160m --seq-len 64 --host-memory 1200MiB --lora rank=4,targets=q_proj,v_proj,layers=0-3 --json \
  -o "$work/lora.json" >"$work/out" 2>"$work/err" || complain "an adapter: exit $?: $(cat "$work/err")"
host=$(value host_bytes)
[ "$(value trained_parameters)" = $((4 * 2 * 4 * (768 + 768))) ] || complain "trained: $(value trained_parameters)"
"$czero" config check "$work/lora.json" 2>"$work/err" || complain "the adapter's config: $(cat "$work/err")"
"$czero" plan --config "$work/lora.json" --model llama-160m --seq-len 64 --strict --json >"$work/out" 2>"$work/err" ||
  complain "its plan: $(cat "$work/err")"
awk -v a="$(value host_peak_bytes)" -v b="$host" 'BEGIN { exit !(a - b < 8e6 && b - a < 8e6) }' ||
  complain "planned $(value host_peak_bytes), promised $host"
"$czero" tune --model gpt2-tiny --seq-len 64 --host-memory 300MiB --precision fp32 --batch 8 --lora rank=4,alpha=8 --measure \
  --measure-count 1 -o "$work/lora.json" >"$work/out" 2>"$work/err" || complain "exit $?: $(cat "$work/err")"
grep -q "M parameters, 0.0 M trained" "$work/out" || complain "what is trained: $(head -1 "$work/out")"
grep -q "^measured 1: .* tokens/s" "$work/err" || complain "no adapter was measured: $(cat "$work/err")"
"$czero" train --config "$work/lora.json" --model gpt2-tiny --init random --data "$work/text" --tokenizer bytes --seq-len 64 \
  --steps 2 --quiet --export "$work/adapter" >/dev/null 2>"$work/err" || complain "training the adapter: $(cat "$work/err")"
grep -q '"lora_alpha": 8' "$work/adapter/adapter_config.json" || complain "no adapter was trained"
"$czero" tune --all --lora rank=16 --gpu-memory 24GB --host-memory 64GB >"$work/out" 2>"$work/err" || complain "presets: $(cat "$work/err")"
grep -q "an adapter of rank 16" "$work/out" && grep -q "^llama-7b  .* yes .* - *stage 0" "$work/out" ||
  complain "an adapter of 7B: $(grep ^llama-7b "$work/out")"

# several disks: the sum of their rates; what is written has the keys and plans to the same
disks=(--model gpt2-1.3b --seq-len 512 --host-memory 8GB --nvme 100GB --batch 8 --micro-batch 1 --json)
"$czero" tune "${disks[@]}" --nvme-path /tmp=1GB >"$work/one" 2>"$work/err" || complain "one disk: $(cat "$work/err")"
"$czero" tune "${disks[@]}" --nvme-path /tmp=1GB --nvme-path /var/tmp=3GB -o "$work/ds.json" >"$work/out" 2>"$work/err" ||
  complain "two disks: $(cat "$work/err")"
python3 -c 'import json, sys
one, two = (json.load(open(f))["offers"][0] for f in sys.argv[1:3])
z = json.load(open(sys.argv[3]))["czero"]
assert z["nvme_paths"] == ["/tmp", "/var/tmp"] and z["nvme_rates"] == [1e9, 3e9], z
assert two["step_seconds"] < one["step_seconds"], (one, two)
assert {t["accumulation_order"] for t in two["traffic"]} == {"layers", "micro_batches"}, two' "$work/one" "$work/out" "$work/ds.json" ||
  complain "striped offers"
"$czero" config check "$work/ds.json" >/dev/null 2>"$work/err" || complain "the striped config: $(cat "$work/err")"

# a folder whose name has a "="
"$czero" tune "${disks[@]}" --nvme-path "$work/lr=1/swap" -o "$work/ds.json" >/dev/null 2>"$work/err" || complain "lr=1: $(cat "$work/err")"
grep -q '"nvme_path": *"[^"]*/lr=1/swap"' "$work/ds.json" || complain "lr=1: $(cat "$work/ds.json")"

expect() { # exit code, part of the sentence, arguments…
  local code=$1 part=$2
  shift 2
  "$czero" tune "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code"
  grep -q -- "$part" "$work/err" || complain "$*: $(cat "$work/err")"
}
small=(--model gpt2-tiny --seq-len 64)
# a GPU that is given by its size is not looked for on this machine: the libraries would count as the program's memory
if command -v cc >/dev/null; then
  printf '#include <stdio.h>\n__attribute__((constructor)) static void f(void) { fclose(fopen("%s", "w")); }\n' "$work/opened" >"$work/plugin.c"
  cc -shared -fPIC -o "$work/plugin.so" "$work/plugin.c" || complain "no plug-in"
  for more in "" "--lora rank=2"; do
    # shellcheck disable=SC2086
    CZERO_CUDA_PLUGIN=$work/plugin.so "$czero" tune "${small[@]}" --host-memory 4GB --gpu-memory 4GB $more >/dev/null 2>"$work/err" || complain "a plug-in: $(cat "$work/err")"
  done
  [ ! -e "$work/opened" ] || complain "tune opens the plug-in for a GPU that is given"
fi
expect 3 "nothing fits. The closest configuration is .* GiB of host memory, .* GiB more than the 8 GB that is given" --model gpt2-7b --seq-len 64 --host-memory 8GB
expect 0 "With [0-9]* GiB of NVMe (--nvme [0-9]*GiB) " --all --model gpt2-7b --seq-len 64 --host-memory 24GB
grep -q "does not fit: needs" "$work/out" || complain "what does not fit is not listed"
CZERO_CUDA_PLUGIN=none expect 0 "not measured: device cuda" "${small[@]}" --host-memory 4GB --gpu-memory 4GB --measure
expect 0 "not measured: a plan for 2 ranks" "${small[@]}" --host-memory 4GB --world-size 2 --measure
expect 2 "all folders have a rate or none" "${small[@]}" --host-memory 4GB --nvme-path /tmp=1GB --nvme-path /var/tmp
expect 2 "24 bananas" "${small[@]}" --host-memory "24 bananas"
expect 2 "host-memory" "${small[@]}"
expect 2 "did you mean 24GB" --host-memory 24
expect 2 "known are rtx3060, " --gpu rtx409 --host-memory 64GB
expect 2 "-o needs --model" -o "$work/x.json" --host-memory 64GB
expect 3 "no preset fits" --host-memory 100MB
expect 0 "64 tokens a row, the model's context" --model gpt2-tiny --host-memory 4GB
expect 2 "nothing.json" "${small[@]}" --host-memory 1GB --profile nothing.json
expect 2 "cannot be dealt to 3 ranks" "${small[@]}" --host-memory 1GB --batch 4 --world-size 3
expect 2 "did you mean c_attn" "${small[@]}" --host-memory 1GB --lora targets=c_atn
expect 2 "lora rank (czero.lora.rank): 0 is out of range" "${small[@]}" --host-memory 1GB --lora rank=0
expect 2 "no linear map is called" --host-memory 64GB --lora targets=nothing
expect 2 "gpt2-huge" --model gpt2-huge --seq-len 64 --host-memory 1GB
"$czero" tune --help >"$work/out" && grep -q "host-memory" "$work/out" || complain "no help"
exit $failed
