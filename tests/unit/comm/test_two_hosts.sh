#!/usr/bin/env bash
# Claim: ranks of two hosts, joined by TCP alone, carry what they are given and reduce as on one;
# when a rank of the other host is killed the rest stop within 5 s, naming rank, step and phase, and
# nothing survives. The hosts are two network namespaces joined by a veth pair, each with a host
# name of its own, so that MPI takes them for different machines.
set -euo pipefail
build=$1
work=$(mktemp -d /tmp/czero-hosts-XXXXXX)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_common.sh"
need_mpi
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "iproute2 is not installed"
command -v unshare >/dev/null || skip "unshare (util-linux) is not installed"

a=cz-$$-a
b=cz-$$-b
cleanup() {
  for host in "$a" "$b"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns del "$host" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT

ip netns add "$a" 2>"$work/log" || skip "no network namespaces here ($(cat "$work/log"))"
ip netns add "$b"
ip link add eth0 netns "$a" type veth peer name eth0 netns "$b" 2>"$work/log" ||
  skip "no veth pairs here ($(cat "$work/log"))"
ip netns exec "$a" unshare --uts hostname "$a" 2>"$work/log" || skip "no host names here ($(cat "$work/log"))"
for at in "$a 1" "$b 2"; do
  read -r host number <<<"$at"
  ip -n "$host" link set lo up
  ip -n "$host" addr add "10.213.77.$number/24" dev eth0
  ip -n "$host" link set eth0 up
done

# What mpirun takes for ssh: agent HOST COMMAND…
cat >"$work/agent" <<'END'
#!/usr/bin/env bash
host=$1
shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && eval "$*"' "$host" "$@"
END
chmod +x "$work/agent"
printf '%s slots=4\n%s slots=4\n' "$a" "$b" >"$work/hosts"
export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_btl=tcp,self \
  OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0

on_a() { timeout -k 5 120 ip netns exec "$a" unshare --uts bash -c 'hostname "$0" && exec "$@"' "$a" "$@"; }

launch() { # ranks, program…
  on_a mpirun --allow-run-as-root --hostfile "$work/hosts" --map-by node --bind-to none \
    --oversubscribe -n "$@"
}

all_ok 2 slots 200
all_ok 4 collectives 10
[ "$(grep -o ' on [^ ]* ok' "$work/log" | sort -u | wc -l)" = 2 ] || fail "the ranks are not on two hosts"
all_ok 2 agree
all_expect 2 disagree
all_expect 4 leave
all_ok 2 request
echo "ranks of two hosts reduce, agree and disagree as those of one"

# A training run gives the bytes that it gives over shared memory.
data=$(cd "$(dirname "$0")/../../.." && pwd)/examples/data/fortunes.txt
head -c 50000 "$data" >"$work/text.txt"
cat >"$work/config.json" <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "zero_optimization": {"stage": 3},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
JSON
train=(train --config "$work/config.json" --model gpt2-tiny --data "$work/text.txt" --seq-len 32
  --shuffle off --steps 12 --quiet)
launch 2 "$build/czero" "${train[@]}" --curve "$work/tcp.csv" --export "$work/tcp" >"$work/log" 2>&1 ||
  fail "training: exit code $?"
"$build/czero" launch -n 2 -- "${train[@]}" --curve "$work/shm.csv" --export "$work/shm" >"$work/log" 2>&1 ||
  fail "training over shared memory: exit code $?"
cmp "$work/tcp.csv" "$work/shm.csv" || fail "another curve than over shared memory"
cmp "$work/tcp/model.safetensors" "$work/shm/model.safetensors" || fail "other weights than over shared memory"
printf '%s slots=1\n%s slots=1\n' "$a" "$b" >"$work/hosts.one"
on_a "$build/czero" launch -n 2 --hostfile "$work/hosts.one" -- "${train[@]}" --curve "$work/launch.csv" \
  >"$work/log" 2>&1 || fail "czero launch --hostfile: exit code $?"
cmp "$work/launch.csv" "$work/shm.csv" || fail "czero launch --hostfile: another curve"
echo "a training run on two hosts gives the bytes of one on one host"

# The last rank is on the second host: the broken connection or the launcher's SIGTERM tells the
# first, which may be a step behind.
stops_when_killed 2 '(lost a connection|stopped by the launcher).* rank 0 waited for rank 1 \(on .*\) at step 1[12] \(reducing gradients\)'
[ -z "$(ip netns pids "$b")" ] || fail "processes survive on the second host"
echo "a rank killed on the other host is named, and nothing survives"
