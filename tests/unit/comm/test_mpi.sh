#!/usr/bin/env bash
# Claim: over MPI, 2 to 8 ranks on however few cores give what comm.h defines, to the byte; they agree,
# disagree and leave in words; waiting takes no core; when one is killed the others end within 5 s
# with a sentence that names it, and nothing is left behind; one rank never starts MPI.
set -euo pipefail
build=$1
work=$(mktemp -d /tmp/czero-mpi-XXXXXX)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_common.sh"
need_mpi
mkdir "$work/shm" # in place of /dev/shm, so that what other programs leave there is not counted

launch() {
  timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe \
    --mca btl_vader_backing_directory "$work/shm" -n "$@"
}

all_ok 2 slots 300
all_ok 8 slots 30
for n in 2 3 4; do all_ok "$n" collectives 16; done
all_ok 8 collectives 6
echo "random collectives of 2, 3, 4 and 8 ranks equal the definition"

all_ok 3 agree
all_expect 3 disagree
all_expect 3 leave
all_ok 3 slow
echo "agreement, disagreement, leaving and waiting work"

# A survivor may be a step behind the dead.
stops_when_killed 3 'rank 2 \(pid [0-9]+ on .*\) died.* step 1[12] \(reducing gradients\)'
[ -z "$(ls -A "$work/shm")" ] || fail "left in shared memory: $(ls "$work/shm")"
echo "a killed rank is named by all others, and nothing is left"

# One rank never starts MPI: not under mpirun or srun, nor in the script of a Slurm job.
export CZERO_MPI_PLUGIN=/nowhere/plugin.so
all_ok 1 slow
for slurm in "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1" "SLURM_PROCID=0 SLURM_NTASKS=4"; do
  env $slurm "$rank" slow >"$work/log" 2>&1 || fail "one rank with $slurm"
done
launch 2 "$rank" agree >"$work/log" 2>&1 && fail "a plug-in that does not exist was loaded"
[ "$(count 'MPI plug-in cannot be loaded.*/nowhere/plugin.so')" = 2 ] || fail "the missing plug-in is not named"
unset CZERO_MPI_PLUGIN

# srun without PMI: MPI would make every rank a world of its own.
SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 "$rank" agree >"$work/log" 2>&1 && fail "two tasks of srun became one rank"
[ "$(count 'MPI has 1 rank, but the launcher started 2: .*srun --mpi=pmix')" = 1 ] || fail "srun without PMI"
echo "one rank does without MPI; what is missing is named"
