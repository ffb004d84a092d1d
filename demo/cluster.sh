#!/usr/bin/env bash
# The tour on a cluster: a Redis Cluster of three primaries with a replica each, an S3 server, and
# three dlservers with users and TLS. On the way a server is killed in the middle of a put, a Redis
# primary dies, and all of Redis is wiped (SRC=..., by default /usr/share/doc).
# Uses a fresh temporary folder and free ports of 127.0.0.1, and leaves nothing behind. With
# PROGRAMS=folder it runs the programs of a target folder, such as target/debug, and builds none.
set -euo pipefail
cd "$(dirname "$0")/.."

src=${SRC:-/usr/share/doc}
work=$(mktemp -d "${TMPDIR:-/tmp}/diesel-cluster.XXXXXX")
started=()
# Whatever is set for other servers is not for these.
unset "${!DIESEL_@}"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# Commands are shown as one would type them, with the short names of their programs.
run() { printf '  $ %s\n' "${1##*/} ${*:2}"; "$@" | sed 's/^/    /'; }
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

# Shows what a command says that is to be refused for a reason, and ends if it is not.
refused() {
    local reason=$1
    shift
    if "$@" >"$work/refused" 2>&1; then fail "it was not refused" "$work/refused"; fi
    grep -q -- "$reason" "$work/refused" || fail "it was refused for another reason" "$work/refused"
    sed 's/^/    /' "$work/refused"
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

bin=${PROGRAMS:-${CARGO_TARGET_DIR:-target}/release}
if [ -z "${PROGRAMS:-}" ]; then
    say "Building (release)"
    cargo build --locked --release -p dl-server -p dlcmd -p libdiesel --bins --examples
fi
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

say "3. Keys and a certificate"
# For a day: the CA, whose certificate the clients trust, and what it says of the servers.
{
    openssl req -x509 -newkey rsa:2048 -noenc -days 1 -subj /CN=demo-ca \
        -keyout "$work/ca.key" -out "$work/ca.pem"
    openssl req -newkey rsa:2048 -noenc -subj /CN=demo -keyout "$work/server.key" \
        -out "$work/server.csr"
    echo 'subjectAltName = IP:127.0.0.1' >"$work/names"
    openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" \
        -CAcreateserial -days 1 -extfile "$work/names" -out "$work/server.pem"
} >"$work/openssl" 2>&1 || fail "openssl made no certificate" "$work/openssl"
echo "  a certificate for 127.0.0.1, valid for a day, from a CA that this demo made"
user() { (umask 077; "$dlcmd" user --users "$work/users" add "$1" --role "$2" --quiet >"$work/$1.key"); }
user ann 'admin:*'
user bob 'read:other-*'
echo "  ann may do everything; bob may read datasets whose names begin with other-"
export DIESEL_CA=$work/ca.pem DIESEL_USER=ann
DIESEL_KEY=$(cat "$work/ann.key")
export DIESEL_KEY

say "4. Three servers, which keep nothing themselves"
meta=redis-cluster://$(printf '127.0.0.1:%s,' "${primaries[@]}" | sed 's/,$//')
servers=()
processes=()
start() {
    : >"$work/address$1"
    "$bin/dlserver" --listen 127.0.0.1:0 --http none --meta "$meta" --store s3://diesel/demo \
        --users "$work/users" --tls-cert "$work/server.pem" --tls-key "$work/server.key" \
        >"$work/address$1" 2>>"$work/server$1.log" &
    processes[$1]=$!
    started+=($!)
    disown "$!"
    for _ in $(seq 300); do
        servers[$1]=$(sed -n 's|^listening on |https://|p' "$work/address$1")
        if [ -n "${servers[$1]}" ]; then
            echo "  dlserver (process ${processes[$1]}) listens on ${servers[$1]}"
            return
        fi
        if ! kill -0 "${processes[$1]}" 2>/dev/null; then break; fi
        sleep 0.1
    done
    fail "dlserver did not start" "$work/server$1.log"
}
echo "  \$ dlserver --meta $meta --store s3://diesel/demo \\"
echo "             --users users --tls-cert server.pem --tls-key server.key"
for server in 0 1 2; do start "$server"; done
join() { printf '%s,' "${servers[@]}" | sed 's/,$//'; }
DIESEL_SERVER=$(join)
export DIESEL_SERVER

echo "  Nobody without a key, and nobody in plain text:"
plain=${servers[0]#https://}
refused "key" env -u DIESEL_USER -u DIESEL_KEY "$dlcmd" datasets
refused "https://" "$dlcmd" --server "$plain" datasets

say "5. Pack $src through all of them; one is killed in the middle"
echo "  \$ dlcmd put $src dl://demo"
objects() { find "$work/s3/diesel/demo" -name '*.c' 2>/dev/null | wc -l; }
"$dlcmd" put "$src" dl://demo >"$work/put" 2>"$work/skipped" &
putting=$!
started+=("$putting")
# As soon as the first chunks are there, which is long before the last ones.
while [ "$(objects)" -lt 2 ] && kill -0 "$putting" 2>/dev/null; do sleep 0.005; done
kill -KILL "${processes[0]}"
stored=$(objects)
if ! kill -0 "$putting" 2>/dev/null; then
    fail "the put was over before the server was killed: give a larger SRC" "$work/skipped"
fi
echo "  kill -KILL ${processes[0]}, with $stored objects stored and the put still going on"
put=0
wait "$putting" || put=$?
sed 's/^/  /' "$work/put"
echo "  there are $(objects) objects now"
# 4: all was tried, and what is not there is listed. A file that can't be read is none of the demo's
# faults; one that could not be stored is.
if { [ "$put" != 0 ] && [ "$put" != 4 ]; } || grep -q '^dlcmd: store ' "$work/skipped"; then
    fail "the put failed" "$work/skipped"
fi
files=$("$dlcmd" ls -R -0 dl://demo | tr -cd '\0' | wc -c)

say "6. Read everything shuffled, comparing every byte, through the two that live"
XDG_CACHE_HOME=$work/cache "$bin/examples/read_shuffled" "${servers[1]},${servers[2]}" demo "$src" "$files" | sed 's/^/  /'

say "7. A Redis primary dies; its replica takes over, and the servers put back what that may lack"
echo "  kill -KILL ${started[0]} (Redis on ${primaries[0]})"
kill -KILL "${started[0]}"
XDG_CACHE_HOME=$work/cache "$bin/examples/read_shuffled" "${servers[1]},${servers[2]}" demo "$src" "$files" | sed 's/^/  /'

say "8. All of Redis is wiped"
start 0
DIESEL_SERVER=$(join)
# A replica takes no such command, and one node is dead.
for port in "${redis[@]}"; do redis-cli -p "$port" flushall >/dev/null 2>&1 || true; done
echo "  That is noticed, not taken for an empty store:"
refused "dlcmd recover" "$dlcmd" ls dl://demo
run "$dlcmd" recover --all
XDG_CACHE_HOME=$work/cache "$bin/examples/read_shuffled" "$DIESEL_SERVER" demo "$src" "$files" | sed 's/^/  /'

echo "  To bob, who may read others, it is not even there:"
refused "none of that name" \
    env DIESEL_USER=bob DIESEL_KEY="$(cat "$work/bob.key")" "$dlcmd" ls dl://demo

say "9. Clean up"
run "$dlcmd" delete-dataset dl://demo
echo "  Done. Nothing is left behind."
