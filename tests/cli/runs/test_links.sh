#!/usr/bin/env bash
# Claim: no command writes through a link below a folder that the user named: a folder that is not the user's own, with
# links in it, leaves everything outside of it as it was. Links of the user's own path work.
. "$(dirname "$0")/../../support/command.sh"

mkdir m victim
echo mine >victim/config.json
for name in latest .czero-run tokenizer.json train_loss.csv; do echo mine >"victim/$name"; done
cat >m/config.json <<'E'
{"model_type":"llama","vocab_size":320,"hidden_size":16,"intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2,"max_position_embeddings":64}
E
cat >ds.json <<'E'
{"train_micro_batch_size_per_gpu":1,"optimizer":{"type":"AdamW","params":{"lr":1e-3}}}
E
head -c 4000 /dev/zero | tr '\0' a >t.txt
cp -a victim before

train() { # ARGUMENTS…
  set -- train --config ds.json --model m --init random --tokenizer bytes --data t.txt --seq-len 16 --steps 2 --quiet "$@"
  "$czero" "$@" >out 2>err
}
held() {
  diff -r before victim >/dev/null || fail "$1: something was written outside"
}
link() { # NAME TARGET: a run folder that came from elsewhere
  rm -rf run
  mkdir -p "$(dirname "run/$1")"
  ln -s "$2" "run/$1"
}

# Where a folder is written, a link is refused by name.
for name in model best; do
  link $name ../victim
  refused 2 "run/$name: is a link" train --config ds.json --model m --init random --tokenizer bytes --data t.txt \
    --eval-data t.txt --best-metric loss --seq-len 16 --steps 1 --quiet --save run
  held "--save with a link at $name"
done

# Where a file is written, the link is replaced.
for name in model/config.json latest; do
  link $name "$work/victim/${name##*/}"
  train --save run || fail "--save with a link at $name"
  [ -f "run/$name" ] && [ ! -L "run/$name" ] || fail "run/$name is still a link"
  held "--save with a link at $name"
done
link global_step2 ../victim
train --save run || fail '--save with a link at its tag'
[ ! -L run/global_step2 ] || fail 'the tag is still a link'
held '--save with a link at its tag'
link .czero-run ../victim/.czero-run
refused 2 'run/.czero-run: is a link' train --config ds.json --model m --init random --tokenizer bytes --data t.txt --seq-len 16 --steps 1 --quiet --save run
held '--save with a link at its lock'
for name in config.json model.safetensors; do
  link $name ../victim/config.json
  train --force --export run || fail "--export with a link at $name"
  [ ! -L run/$name ] || fail "$name is still a link"
  held "--export with a link at $name"
done

# Monitors: a link at the job's folder or at a file in it.
cat >monitors.json <<'E'
{"train_micro_batch_size_per_gpu":1,"optimizer":{"type":"AdamW","params":{"lr":1e-3}},
 "csv_monitor":{"enabled":true,"output_path":"run","job_name":"job"}}
E
link job ../victim
refused 2 'run/job: is a link' train --config monitors.json --model m --init random --tokenizer bytes --data t.txt --seq-len 16 --steps 1 --quiet
held 'a monitor with a link at its folder'
link job/Train_Samples_train_loss.csv ../../victim/train_loss.csv
"$czero" train --config monitors.json --model m --init random --tokenizer bytes --data t.txt --seq-len 16 --steps 2 --quiet >out 2>err || true
held 'a monitor with a link at its file'

# The user's own links work: in the path of a folder, and at a file that an option names.
rm -rf run
mkdir real
ln -s real own
ln -s real/curve.csv curve.csv
train --save own/run --export own/model --curve curve.csv || fail "the user's links"
[ -L own ] && [ -d real/run/model ] && [ -f real/model/config.json ] || fail "links in the user's path"
[ -L curve.csv ] && [ -s real/curve.csv ] || fail "a link that --curve names"

# Marks and leftovers of a save: a link is never opened, followed or removed through.
for name in .global_step2.saving .global_step2.saving.by .global_step1.saving.by .global_step1.deleting \
  .global_step1.deleting.by latest.tmp; do
  for target in ../victim ../victim/latest ../nowhere; do
    link $name $target
    train --save run || [ "$name" != "${name#.global_step2}" ] || fail "--save with a link at $name: refused"
    held "--save with a link at $name to $target"
    [ ! -e nowhere ] || fail "--save with a link at $name made what it names"
  done
done

# A tag of a stranger whose files and folders are links: it is moved aside as it is, and pruned.
rm -rf run
train --save run || fail 'a run to be changed'
for name in run/global_step2/*; do
  ln -sf "$work/victim/config.json" "$name"
done
ln -s "$work/victim" run/global_step2/folder
train --force --save run || fail '--save over a tag of links'
[ -z "$(find run/global_step2 -type l)" ] || fail 'links are left in the tag'
held '--save over a tag of links'
cp -a run/global_step2 run/global_step1
ln -sf "$work/victim/config.json" run/global_step1/czero_state.json
ln -s "$work/victim" run/global_step1/folder
train --resume run --save run --steps 3 --save-keep 1 || fail '--save-keep beside a tag with links'
held '--save-keep beside a tag with links'

# Adapters: in the model beside a run, and in an export.
for name in adapter_config.json adapter_model.safetensors config.json tokenizer.json; do
  link model/$name "$work/victim/config.json"
  train --lora rank=2 --force --save run || fail "an adapter's --save with a link at model/$name"
  held "an adapter's --save with a link at model/$name"
  link "$name" "$work/victim/config.json"
  train --lora rank=2 --force --export run || fail "an adapter's --export with a link at $name"
  held "an adapter's --export with a link at $name"
done

# Kept tokens: a link has none, and is replaced.
echo '{"prompt": "a", "completion": "b"}' >rows.jsonl
sft() { # CACHE
  "$czero" train --task sft --config ds.json --model m --init random --tokenizer bytes --data rows.jsonl --seq-len 16 \
    --steps 1 --token-cache "$1" >out 2>err
}
sft kept || fail '--token-cache'
sft kept && grep -qF 'tokens from --token-cache' err || fail '--token-cache has nothing'
tokens=$(basename kept/*.tokens)
cp "kept/$tokens" victim
cp "kept/$tokens" before
for target in "$tokens" config.json nothing; do
  ln -sf "$work/victim/$target" "kept/$tokens"
  sft kept && ! grep -qF 'tokens from --token-cache' err || fail "--token-cache reads through a link to $target"
  [ -f "kept/$tokens" ] && [ ! -L "kept/$tokens" ] || fail '--token-cache: the link is still there'
  held '--token-cache with a link'
done
ln -s kept own-kept
sft own-kept && grep -qF 'tokens from --token-cache' err || fail "--token-cache: the user's link"

# Swap files: a link in the place of the folder's mark or of an old swap file stays, with what it names.
cat >swap.json <<'J'
{"train_micro_batch_size_per_gpu":1,"optimizer":{"type":"AdamW","params":{"lr":1e-3}},
 "zero_optimization":{"stage":3,"offload_optimizer":{"device":"nvme","nvme_path":"run/swap"}}}
J
old=czero-swap-rank0-0123456789abcdef
for name in .czero-swap-made $old $old.x; do
  for target in ../../victim/latest ../../nowhere ../../victim; do
    link "swap/$name" $target
    "$czero" train --config swap.json --model m --init random --tokenizer bytes --data t.txt --seq-len 16 --steps 2 \
      --quiet >out 2>err || fail "nvme_path with a link at $name"
    [ -L "run/swap/$name" ] && [ ! -e nowhere ] || fail "nvme_path: the link at $name to $target"
    held "nvme_path with a link at $name to $target"
  done
done
