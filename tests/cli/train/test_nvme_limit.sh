#!/usr/bin/env bash
# Claim: inside a control group with a memory limit, a model whose states are larger than the limit is
# refused without offload and trains with its states and parameters on NVMe, within the limit by the
# kernel's own count, to the same losses as without (bench/nvme_limit.sh, here with a small model).
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d /tmp/czero-limit-XXXXXX)
trap 'rm -rf "$work"' EXIT
case $(nm "$build/czero" 2>/dev/null) in
  *__asan_init* | *__tsan_init*) echo "skipped: a sanitizer's memory is in no plan"; exit 77 ;;
esac
# 25 million parameters: 400 MB without offload, of which 340 MB may go.
cat >"$work/config.json" <<'JSON'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32,
 "n_embd": 512, "n_layer": 8, "n_head": 8, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
"$source_dir/bench/nvme_limit.sh" --czero "$build/czero" --model "$work" --limit-mib 280 --steps 3 --batch 1 \
  --seq-len 32 --dir "$work" >"$work/out.txt" 2>&1
code=$?
cat "$work/out.txt"
[ $code = 0 ] || exit $code
grep -q 'without offload: refused: the run needs .* more memory' "$work/out.txt" || exit 1
grep -q 'with NVMe offload: 3 steps, peak .* killed for memory: 0' "$work/out.txt" || exit 1
grep -q 'the losses of all steps are the same' "$work/out.txt"
