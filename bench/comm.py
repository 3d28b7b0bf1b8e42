#!/usr/bin/env python3
"""All-reduce between ranks of one host beside DeepSpeed's shared-memory one, gloo's and MPI's own.

    python3 bench/comm.py [--ranks 2] [--kib 64 1024 16384 65536] [--rounds 2]

Every rank has one core; sides run in turns. Ours is the canonical reduction (rank order, fp32), over shared
memory and over MPI. Prints each side's lowest median of all rounds and its time over ours.
"""
import argparse
import os
import socket
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def check(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def ours(args, prefix, env):
    text = check(prefix + [os.path.join(ROOT, "build", "bench", "bench_comm"), *args.how, "--seconds", "0.3",
                           "all_reduce"], env=env)
    rows = [line.split() for line in text.splitlines() if line.startswith("all_reduce")]
    return {(r[1], int(r[2])): float(r[4]) for r in rows if int(r[2]) in args.kib}


def czero_shm(args, work):
    args.how = ["--ranks", str(args.ranks)]
    return {"czero shm": ours(args, [], None)}


def czero_mpi(args, work):
    args.how = ["--launched"]
    return {"czero mpi": ours(args, ["mpirun", "-n", str(args.ranks), "--bind-to", "core"], dict(os.environ, **AS_ROOT))}


def mpi(args, work):
    program = os.path.join(work, "mpi_allreduce")
    if not os.path.exists(program):
        check(["mpicc", "-O2", "-o", program, os.path.join(ROOT, "bench", "peers", "mpi_allreduce.c")])
    text = check(["mpirun", "-n", str(args.ranks), "--bind-to", "core", program, *map(str, args.kib)],
                 env=dict(os.environ, **AS_ROOT))
    rows = [line.split() for line in text.splitlines()]
    return {"MPI_Allreduce": {(r[0], int(r[1])): float(r[3]) for r in rows}}


def deepspeed(args, work):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    env = dict(os.environ, WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
               OMP_NUM_THREADS="1")
    command = [args.python, os.path.join(ROOT, "bench", "peers", "deepspeed_allreduce.py"), *map(str, args.kib)]
    ranks = [subprocess.Popen(command, env=dict(env, RANK=str(r)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, preexec_fn=lambda r=r: os.sched_setaffinity(0, [cores[r % len(cores)]]))
             for r in range(args.ranks)]
    outputs = [rank.communicate() for rank in ranks]
    for rank, (_, err) in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(err)
    names = {"deepspeed": "DeepSpeed shm", "gloo": "gloo"}
    sides = {name: {} for name in names.values()}
    for line in outputs[0][0].splitlines():
        words = line.split()
        if words and words[0] in names:
            sides[names[words[0]]][words[1], int(words[2])] = float(words[4])
    return sides


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="the peers' python (default: scripts/peers.sh)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kib", type=int, nargs="+", default=[64, 1024, 16384, 65536], help="per rank; powers of 4")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if not args.python:
        script = os.path.join(ROOT, "scripts", "peers.sh")
        args.python = check([script]).strip()
    best = {}
    with tempfile.TemporaryDirectory() as work:
        for _ in range(args.rounds):
            for side in (czero_shm, deepspeed, mpi, czero_mpi):
                for name, figures in side(args, work).items():
                    for key, us in figures.items():
                        best.setdefault(name, {})
                        best[name][key] = min(us, best[name].get(key, us))
    print(f"all-reduce, {args.ranks} ranks x 1 core, lowest median of {args.rounds} rounds, in microseconds")
    for name, figures in best.items():
        for dtype in ("bf16", "fp32"):
            cells = [f"{kib:6d} KiB {figures[dtype, kib]:9.1f} ({figures[dtype, kib] / best['czero shm'][dtype, kib]:.2f}x)"
                     for kib in args.kib if (dtype, kib) in figures]
            if cells:
                print(f"{name:14s} {dtype}  " + "  ".join(cells))


if __name__ == "__main__":
    main()
