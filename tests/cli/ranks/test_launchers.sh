#!/usr/bin/env bash
# Claim: train, and launch itself, started as several ranks by another launcher are refused, or run alone when asked;
# rank 0 alone does the work of other commands; a number of ranks without a rank is a warning.
. "$(dirname "$0")/../../support/command.sh"
printf '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
printf 'some words to train on, again and again and again\n%.0s' {1..20} >t.txt
run=(train --config ds.json --model gpt2-tiny --data t.txt --tokenizer bytes --seq-len 16 --steps 1)

export RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 TORCHELASTIC_RUN_ID=x
refused 2 "started by torchrun as rank 1 of 2 (RANK, WORLD_SIZE): use czero launch -n 2" "${run[@]}" --export exported
refused 2 "started by torchrun" launch -n 2 "${run[@]}"
[ ! -e exported ] || fail "a refused run wrote its export"
"$czero" plan --config ds.json --model gpt2-tiny --seq-len 16 >out 2>err
[ ! -s out ] || fail "rank 1 printed a plan"
RANK=0 "$czero" plan --config ds.json --model gpt2-tiny --seq-len 16 >out 2>err
grep -q 'Memory of one rank' out || fail "rank 0 printed no plan"
CZERO_RANK=0 CZERO_WORLD_SIZE=1 "$czero" "${run[@]}" >out 2>err || fail "a run of its own was refused"
grep -q '1 rank' err || fail "no run of one rank"
unset RANK LOCAL_RANK TORCHELASTIC_RUN_ID
"$czero" "${run[@]}" >out 2>err || fail "WORLD_SIZE alone ended the run"
grep -q 'WORLD_SIZE is 2, but this run has 1 rank' err || fail "no warning about WORLD_SIZE"
unset WORLD_SIZE
export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0
refused 2 "czero launch was started 2 times by mpirun" launch -n 2 "${run[@]}"
