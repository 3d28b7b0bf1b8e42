#!/usr/bin/env python3
"""Time per step over a slow link: AdamW beside the 1-bit optimizers in the phase where they compress.

    sudo python3 bench/onebit_link.py [--ranks 2] [--mbit 100] [--rounds 2] [--model DIR|PRESET]

Each rank is a host of its own: a network namespace with a veth to a switch, limited by tc to --mbit
both ways, and reached by OpenMPI over TCP alone. Variants run in turns. Needs root, iproute2 and
mpirun; exits with 77 where it cannot have them. Namespaces are removed however it ends.
"""
import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = os.path.join(ROOT, "examples", "data", "fortunes.txt")
FREEZE = 4  # steps until the variance is frozen: as few as make sense

# What mpirun takes for ssh: agent HOST COMMAND…
AGENT = """#!/usr/bin/env bash
host=$1
shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && eval "$*"' "$host" "$@"
"""


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


# ---- hosts and links ---------------------------------------------------------------------------


class Network:
    """Namespaces joined by a switch in one more."""

    def __init__(self, ranks, mbit):
        self.names = [f"cz-{os.getpid()}-{i}" for i in range(ranks)]
        self.switch = f"cz-{os.getpid()}-switch"
        self.mbit = mbit

    def __enter__(self):
        try:
            self.create()
        except subprocess.CalledProcessError as failure:
            self.remove()
            skip(f"no network as it is needed here: {' '.join(failure.cmd)}: {failure.stderr.strip()}")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def create(self):
        call("ip", "netns", "add", self.switch)
        call("ip", "-n", self.switch, "link", "add", "switch", "type", "bridge")
        call("ip", "-n", self.switch, "link", "set", "switch", "up")
        for i, host in enumerate(self.names):
            port = f"port{i}"
            call("ip", "netns", "add", host)
            call("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port,
                 "netns", self.switch)
            call("ip", "-n", self.switch, "link", "set", port, "master", "switch", "up")
            call("ip", "-n", host, "link", "set", "lo", "up")
            call("ip", "-n", host, "addr", "add", f"10.213.78.{i + 1}/24", "dev", "eth0")
            call("ip", "-n", host, "link", "set", "eth0", "up")
            for space, device in ((host, "eth0"), (self.switch, port)):
                call("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                     f"{self.mbit}mbit", "burst", "128kb", "latency", "100ms")

    def remove(self):
        for name in self.names + [self.switch]:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in pids:
                subprocess.run(["kill", "-9", pid], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def sent(self, host):
        """Bytes that the host has put on its link, headers and all."""
        done = call("ip", "netns", "exec", host, "cat", "/sys/class/net/eth0/statistics/tx_bytes")
        return int(done.stdout)


def call(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True)


# ---- what runs ---------------------------------------------------------------------------------


def model_folder(args, work):
    config = {"model_type": "gpt2", "vocab_size": 256, "n_positions": args.seq_len, "n_embd": 512, "n_layer": 8,
              "n_head": 8, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    folder = os.path.join(work, "model")
    os.mkdir(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def variants(args):
    adam = {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-6}
    config = {"train_micro_batch_size_per_gpu": args.batch, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": args.stage}}
    backend = {"comm_backend_name": "compressed"}
    one_bit = dict(adam, freeze_step=FREEZE, **backend)
    zero_one = dict(adam, var_freeze_step=FREEZE, var_update_scaler=16, local_step_scaler=1,
                    local_step_clipper=args.local_steps, **backend)
    return {
        "AdamW, fp32 on the wire": dict(config, optimizer={"type": "AdamW", "params": adam}),
        "AdamW, bf16 on the wire": dict(config, optimizer={"type": "AdamW", "params": adam},
                                        communication_data_type="bf16"),
        "OneBitAdam, frozen": dict(config, optimizer={"type": "OneBitAdam", "params": one_bit}),
        f"ZeroOneAdam, frozen, settling every {args.local_steps} steps":
            dict(config, optimizer={"type": "ZeroOneAdam", "params": zero_one}),
    }


def steps_before(args, name):
    """Steps that are not measured: until the variance is frozen and intervals have grown to their end."""
    if "ZeroOneAdam" in name:
        grown = FREEZE + 2 + math.ceil(math.log2(args.local_steps))
        return math.ceil(grown / args.local_steps) * args.local_steps
    return FREEZE + 2 if "OneBit" in name else 2


def measured_steps(args, name):
    return args.plain_steps if "AdamW" in name else args.steps


def run(args, network, name, config, work):
    """Seconds of a measured step, bytes it sent, and bytes that the first host's link carried away."""
    path = os.path.join(work, "ds_config.json")
    with open(path, "w") as f:
        json.dump(config, f)
    before, count = steps_before(args, name), measured_steps(args, name)
    command = ["ip", "netns", "exec", network.names[0], "unshare", "--uts", "bash", "-c",
               'hostname "$0" && exec "$@"', network.names[0], args.czero, "launch", "-n", str(args.ranks),
               "--hostfile", os.path.join(work, "hosts"), "--", "train", "--config", path, "--model", args.model,
               "--init", "random", "--data", TEXT, "--tokenizer", "bytes", "--shuffle", "off", "--seq-len",
               str(args.seq_len), "--steps", str(before + count), "--log-json", "--quiet"]
    # By default messages of more than 64 KiB wait for the receiver's word, behind all that is under way:
    # on a slow link that doubles AdamW's time.
    env = dict(os.environ, OMP_NUM_THREADS="1", OMPI_MCA_plm="rsh", OMPI_MCA_btl="tcp,self",
               OMPI_MCA_plm_rsh_agent=os.path.join(work, "agent"), OMPI_MCA_btl_tcp_if_include="eth0",
               OMPI_MCA_oob_tcp_if_include="eth0", OMPI_MCA_btl_tcp_eager_limit=str(1 << 20))
    steps, links = [], []
    with open(os.path.join(work, "errors"), "w+") as errors:
        process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=errors)
        for line in process.stdout:
            if line.startswith("{"):
                steps.append(json.loads(line))
                links.append(network.sent(network.names[0]))
        if process.wait() != 0 or len(steps) != before + count:
            errors.seek(0)
            sys.exit(f"{name}: {errors.read()}")
    times = [s["elapsed_s"] for s in steps]
    return {"seconds": (times[-1] - times[before - 1]) / count,
            "sent": statistics.mean(s.get("sent_bytes", 0) for s in steps[before:]),
            "link": (links[-1] - links[before - 1]) / count}


def print_run(name, result):
    print(f"{name}: {result['seconds']:.3f} s a step, sent {result['sent']:,.0f} bytes a step, "
          f"on the link {result['link']:,.0f}", flush=True)


def print_ratios(results):
    """How many times faster each variant's best run is than those of AdamW."""
    best = {name: min(r["seconds"] for r in runs) for name, runs in results.items()}
    for plain in (name for name in best if "AdamW" in name):
        for name in best:
            if "AdamW" not in name:
                print(f"{name}: {best[plain] / best[name]:.2f}x the speed of {plain}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build", "czero"))
    parser.add_argument("--model", help="default: a GPT-2 of 25 million parameters")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1, help="rows per rank")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16, help="measured ones of the 1-bit optimizers")
    parser.add_argument("--plain-steps", type=int, default=3, help="measured ones of AdamW")
    parser.add_argument("--local-steps", type=int, default=4, help="ZeroOneAdam's local_step_clipper")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="variants whose name contains this")
    return parser.parse_args()


def main():
    args = parse_arguments()
    if os.geteuid() != 0:
        skip("network namespaces need root")
    for program in ("ip", "tc", "unshare", "mpirun"):
        if not shutil.which(program):
            skip(f"{program} is not installed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.czero = os.path.abspath(args.czero)
    args.model_name = args.model or "GPT-2 of 25 million parameters"
    with tempfile.TemporaryDirectory() as work, Network(args.ranks, args.mbit) as network:
        args.model = args.model or model_folder(args, work)
        with open(os.path.join(work, "agent"), "w") as f:
            f.write(AGENT)
        os.chmod(os.path.join(work, "agent"), 0o755)
        with open(os.path.join(work, "hosts"), "w") as f:
            f.writelines(f"{host} slots=1\n" for host in network.names)
        chosen = {name: c for name, c in variants(args).items() if not args.only or args.only in name}
        results = {name: [] for name in chosen}
        print(f"{args.model_name}, {args.ranks} ranks, one host each, {args.mbit} Mbit/s, stage {args.stage}, "
              f"batch {args.batch} x {args.seq_len} per rank, fp32; means of a run's measured steps")
        for _ in range(args.rounds):
            for name, config in chosen.items():
                results[name].append(run(args, network, name, config, work))
                print_run(name, results[name][-1])
    print_ratios(results)


if __name__ == "__main__":
    main()
