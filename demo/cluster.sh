#!/usr/bin/env bash
# The tour on a cluster: a Redis Cluster of three primaries with a replica each, an S3 server, and
# three dlservers. On the way a server is killed in the middle of a put, a Redis primary dies, and
# all of Redis is wiped (SRC=..., by default /usr/share/doc).
# Uses a fresh temporary folder and free ports of 127.0.0.1, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."

src=${SRC:-/usr/share/doc}
work=$(mktemp -d "${TMPDIR:-/tmp}/diesel-cluster.XXXXXX")
started=()

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '  $ %s\n' "$*"; "$@" | sed 's/^/    /'; }
fail() {
    echo "$1:" >&2
    tail -n 20 "$2" >&2
    exit 1
}
finish() {
    for process in "${started[@]}"; do kill -KILL "$process" 2>/dev/null || true; done
    for process in "${started[@]}"; do
        while kill -0 "$process" 2>/dev/null; do sleep 0.05; done
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# A port that is free, with the one 10,000 above it for the nodes of Redis among themselves.
free_port() {
    python3 - <<'PY'
import socket
while True:
    with socket.socket() as one, socket.socket() as bus:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        if port + 10000 < 65536:
            try:
                bus.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            print(port)
            break
PY
}

until_ok() {
    local what=$1
    shift
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    echo "$what: not in 30 s" >&2
    exit 1
}

if [ ! -d "$src" ]; then
    echo "SRC=$src is not a folder: give one, as in make cluster-demo SRC=/usr/share" >&2
    exit 2
fi

say "Building (release)"
cargo build --locked --release -p dl-server -p dlcmd -p libdiesel --bins --examples
bin=${CARGO_TARGET_DIR:-target}/release
dlcmd=$bin/dlcmd

say "1. A Redis Cluster for the metadata: three primaries, a replica behind each"
redis=()
for node in 0 1 2 3 4 5; do
    port=$(free_port)
    mkdir "$work/redis$node"
    redis-server --port "$port" --bind 127.0.0.1 --cluster-enabled yes --save "" --appendonly yes \
        --cluster-node-timeout 2000 --repl-diskless-sync-delay 0 --dir "$work/redis$node" \
        >"$work/redis$node/log" 2>&1 &
    started+=($!)
    disown "$!"
    redis+=("$port")
done
for port in "${redis[@]}"; do until_ok "Redis on $port" redis-cli -p "$port" ping; done
redis-cli --cluster create "${redis[@]/#/127.0.0.1:}" --cluster-replicas 1 --cluster-yes \
    >"$work/create" || fail "the Redis Cluster did not form" "$work/create"
for port in "${redis[@]}"; do
    until_ok "the cluster, as $port sees it" \
        sh -c "redis-cli -p $port cluster info | grep -q cluster_state:ok"
done
# A replica that has never been in step is not made a primary.
for port in "${redis[@]:3}"; do
    until_ok "the replica $port" \
        sh -c "redis-cli -p $port info replication | grep -q master_link_status:up"
done
primaries=("${redis[@]:0:3}")
echo "  on ports ${redis[*]}"

say "2. An S3 server for the chunks"
mkdir -p "$work/s3/diesel"
RUST_LOG=s3s_fs=info s3s-fs --host 127.0.0.1 --port 0 --access-key key --secret-key secret \
    "$work/s3" >"$work/s3.log" 2>&1 &
started+=($!)
disown "$!"
until_ok "the S3 server (make buckets installs it)" grep -qE '127.0.0.1:[0-9]+' "$work/s3.log"
s3=$(grep -oE '127.0.0.1:[0-9]+' "$work/s3.log" | head -n 1)
echo "  on $s3"
export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1
export AWS_ENDPOINT=http://$s3 AWS_ALLOW_HTTP=true

say "3. Three servers, which keep nothing themselves"
meta=redis-cluster://$(printf '127.0.0.1:%s,' "${primaries[@]}" | sed 's/,$//')
servers=()
processes=()
start() {
    : >"$work/address$1"
    "$bin/dlserver" --listen 127.0.0.1:0 --http none --meta "$meta" --store s3://diesel/demo \
        >"$work/address$1" 2>>"$work/server$1.log" &
    processes[$1]=$!
    started+=($!)
    disown "$!"
    for _ in $(seq 300); do
        servers[$1]=$(sed -n 's/^listening on //p' "$work/address$1")
        if [ -n "${servers[$1]}" ]; then
            echo "  dlserver (process ${processes[$1]}) listens on ${servers[$1]}"
            return
        fi
        if ! kill -0 "${processes[$1]}" 2>/dev/null; then break; fi
        sleep 0.1
    done
    fail "dlserver did not start" "$work/server$1.log"
}
echo "  dlserver --meta $meta --store s3://diesel/demo"
for server in 0 1 2; do start "$server"; done
join() { printf '%s,' "${servers[@]}" | sed 's/,$//'; }
DIESEL_SERVER=$(join)
export DIESEL_SERVER

say "4. Pack $src through all of them; one is killed in the middle"
(sleep 0.1; kill -KILL "${processes[0]}") &
put=0
"$dlcmd" put "$src" dl://demo >"$work/put" 2>"$work/skipped" || put=$?
wait $! || true
sed 's/^/  /' "$work/put"
echo "  kill -KILL ${processes[0]} (0.1 s after the beginning)"
# 4: files that can't be read were left out, and the rest is there.
if [ "$put" != 0 ] && [ "$put" != 4 ]; then fail "the put failed" "$work/skipped"; fi

say "5. Read everything in a random order, comparing every byte, through the two that live"
"$bin/examples/read_shuffled" "${servers[1]},${servers[2]}" demo "$src" | sed 's/^/  /'

say "6. A Redis primary dies; its replica takes over, and the servers put back what that may lack"
echo "  kill -KILL ${started[0]} (Redis on ${primaries[0]})"
kill -KILL "${started[0]}"
"$bin/examples/read_shuffled" "${servers[1]},${servers[2]}" demo "$src" | sed 's/^/  /'

say "7. All of Redis is wiped"
start 0
DIESEL_SERVER=$(join)
for port in "${redis[@]}"; do redis-cli -p "$port" flushall >/dev/null 2>&1 || true; done
echo "  That is noticed, not taken for an empty store:"
"$dlcmd" ls dl://demo 2>&1 | sed 's/^/    /' || true
run "$dlcmd" recover --all
"$bin/examples/read_shuffled" "$DIESEL_SERVER" demo "$src" | sed 's/^/  /'

say "8. Clean up"
run "$dlcmd" delete-dataset dl://demo
echo "  Done. Nothing is left behind."
