#!/usr/bin/env bash
# A tour of DIESEL on a real folder (SRC=..., by default /usr/share): pack it, list it, read it back
# in a random order, share it between processes, kill the server, lose the metadata, recover it from the
# chunks, read it again.
# Uses a fresh temporary folder and free ports, and leaves nothing behind. With PROGRAMS=folder it runs
# the programs of a target folder, such as target/debug, and builds none.
set -euo pipefail
cd "$(dirname "$0")/.."

src=${SRC:-/usr/share}
work=$(mktemp -d "${TMPDIR:-/tmp}/diesel-demo.XXXXXX")
server=
# Whatever is set for other servers is not for this one.
unset "${!DIESEL_@}"
export DIESEL_SERVER=
export DIESEL_RUNTIME_DIR=$work/run

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '  $ dlcmd %s\n' "$*"; "$dlcmd" "$@" | sed 's/^/    /'; }

stop() {
    if [ -n "$server" ]; then
        kill "-$1" "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}
finish() {
    "${dlcmd:-false}" umount --lazy "$work/mnt" >/dev/null 2>&1 || true
    "${dlcmd:-false}" agent stop --task demo >/dev/null 2>&1 || true
    stop KILL
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

start() {
    : >"$work/address"
    "$bin/dlserver" --listen 127.0.0.1:0 --http none --data "$work/data" >"$work/address" 2>>"$work/log" &
    server=$!
    for _ in $(seq 300); do
        DIESEL_SERVER=$(sed -n 's/^listening on //p' "$work/address")
        if [ -n "$DIESEL_SERVER" ]; then
            echo "  dlserver (process $server) listens on $DIESEL_SERVER"
            return
        fi
        if ! kill -0 "$server" 2>/dev/null; then break; fi
        sleep 0.1
    done
    echo "dlserver did not start:" >&2
    cat "$work/log" >&2
    exit 1
}

if [ ! -d "$src" ]; then
    echo "SRC=$src is not a folder: give one, as in make demo SRC=/usr/share" >&2
    exit 2
fi

bin=${PROGRAMS:-${CARGO_TARGET_DIR:-target}/release}
if [ -z "${PROGRAMS:-}" ]; then
    say "Building (release)"
    cargo build --locked --release -p dl-server -p dlcmd -p libdiesel --bins --examples
fi
dlcmd=$bin/dlcmd

say "1. One command starts a server: embedded metadata, chunks in a folder"
start

say "2. Pack $src ($(find "$src" -type f 2>/dev/null | wc -l) files, and links to them) into chunks of at most 4 MiB"
began=$(date +%s.%N)
put=0
"$dlcmd" put "$src" dl://demo >"$work/put" 2>"$work/skipped" || put=$?
ended=$(date +%s.%N)
sed 's/^/  /' "$work/put"
# 4: all was tried, and what is not there is listed. A file that can't be read is none of the demo's
# faults; one that could not be stored is.
if { [ "$put" != 0 ] && [ "$put" != 4 ]; } || grep -q '^dlcmd: store ' "$work/skipped"; then
    echo "the put failed:" >&2
    tail -n 20 "$work/skipped" >&2
    exit 1
fi
if [ -s "$work/skipped" ]; then
    echo "  links, special files and unreadable files were left out:"
    head -n 3 "$work/skipped" | sed 's/^/    /'
fi
files=$("$dlcmd" ls -R -0 dl://demo | tr -cd '\0' | wc -c)
chunks=$(find "$work/data/chunks" -name '*.c' | wc -l)
awk -v f="$files" -v c="$chunks" -v s="$(echo "$ended $began" | awk '{print $1-$2}')" \
    'BEGIN { printf "  %d files are now %d objects; durable in %.2f s, %.0f files/s\n", f, c, s, f/s }'

say "3. Look around"
run datasets
run du dl://demo
echo "  \$ dlcmd ls -l dl://demo | head -n 4"
("$dlcmd" ls -l dl://demo || true) | head -n 4 | sed 's/^/    /'

say "4. Read everything back shuffled, comparing every byte with the originals"
XDG_CACHE_HOME=$work/cache "$bin/examples/read_shuffled" "$DIESEL_SERVER" demo "$src" "$files" | sed 's/^/  /'

say "5. Four processes of a job read two epochs from one copy in memory"
epoch() {
    local readers=()
    for rank in 0 1 2 3; do
        XDG_CACHE_HOME=$work/cache "$dlcmd" shuffle dl://demo --read --group-size 10 --epoch "$1" \
            --world 4 --rank "$rank" --task demo >"$work/rank$rank" &
        readers+=($!)
    done
    for reader in "${readers[@]}"; do wait "$reader"; done
    cat "$work"/rank? | sed 's/^/    /'
    "$dlcmd" agent status --task demo | grep '^fetched from the servers' | sed 's/^/  /'
}
epoch 0
echo "  The second epoch asks the server for nothing:"
epoch 1
run agent stop --task demo

say "   A job with little memory and a local disk, and a second job, which starts warm"
mkdir "$work/disk"
for job in cold warm; do
    export XDG_CACHE_HOME=$work/cache
    run agent start dl://demo --task "$job" --tiers "memory:48MiB,$work/disk:100GiB"
    # On a nearly full disk not all fits.
    run agent prefetch dl://demo --wait --task "$job" || true
    "$dlcmd" shuffle dl://demo --read --group-size 2 --task "$job" | sed 's/^/    /'
    "$dlcmd" agent status --task "$job" | grep -E '^(disk|fetched from the servers)' | sed 's/^/    /'
    until "$dlcmd" --json agent status --task "$job" | grep -q '"disk_writes":0'; do sleep 0.1; done
    run agent stop --task "$job"
    unset XDG_CACHE_HOME
done
run agent clean "$work/disk"

if [ -r /dev/fuse ] && [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    say "   The dataset as a folder, whose server is killed"
    mkdir "$work/mnt"
    XDG_CACHE_HOME=$work/cache run mount dl://demo "$work/mnt" --task demo
    echo "  $(find "$work/mnt" -type f | wc -l) files in the folder"
    serving=$("$dlcmd" --json mounts "$work/mnt" | sed -n 's/.*"server":\([0-9]*\).*/\1/p')
    echo "  kill -KILL $serving; tar of all files:"
    kill -KILL "$serving"
    tar -C "$work/mnt" -cf - . | wc -c | sed 's/$/ bytes/; s/^/    /'
    run umount "$work/mnt"
    run agent stop --task demo
else
    say "   No mount: this needs root and /dev/fuse"
fi

say "6. kill -9 the server, and lose all of its metadata"
echo "  kill -KILL $server; rm -r data/meta"
stop KILL
rm -r "$work/data/meta"
start
echo "  An emptied metadata store is noticed, not taken for an empty dataset:"
if "$dlcmd" ls dl://demo >"$work/refused" 2>&1; then
    echo "it was not noticed" >&2
    exit 1
fi
sed 's/^/    /' "$work/refused"

say "7. The chunks describe themselves: rebuild the metadata from them"
run recover --all

say "8. Read everything again"
XDG_CACHE_HOME=$work/cache "$bin/examples/read_shuffled" "$DIESEL_SERVER" demo "$src" "$files" | sed 's/^/  /'

say "9. Clean up"
run delete-dataset dl://demo
stop TERM
echo "  Done. Nothing is left behind."
