#!/usr/bin/env bash
# Runs the commands of docs/OPERATIONS.md in their order, as they stand there, on three machines for
# Redis, two for servers and one box, which are addresses of this one. A test starts it in a network, a
# file system and a set of processes of its own: nothing of it is left when it ends.
#
# $1: the page; $2: a folder with the programs; $3: s3s-fs; $4: an empty folder.
#
# What differs from the page: a bucket of s3s-fs for Amazon's, and folders below /var/lib for /nvme,
# /diesel, another machine's disk and where a dataset came from. The test says which blocks are left
# out, and why.
set -euo pipefail
page=$(realpath "$1") programs=$2 bucket=$3 work=$4

fail() {
    echo "operations: $*" >&2
    exit 1
}

# The block for a shell that holds this text.
block() {
    awk -v wanted="$1" '
        /^```sh$/ { inside = 1; text = ""; next }
        /^```$/ { if (inside && index(text, wanted)) { printf "%s", text; found = 1; exit } inside = 0 }
        inside { text = text $0 "\n" }
        END { if (!found) exit 1 }' "$page" |
        sed -e 's#/nvme/#/var/lib/nvme/#; s#backup:/diesel/#/var/lib/backup/#' \
            -e 's#--store /diesel/#--store /var/lib/backup/#; s#embedded:/diesel/#embedded:/var/lib/backup/#' \
            -e "s#AWS_ACCESS_KEY_ID=\.\.\.#AWS_ACCESS_KEY_ID=key#" \
            -e "s#AWS_SECRET_ACCESS_KEY=\.\.\.#AWS_SECRET_ACCESS_KEY=secret#" \
            -e "s#/data/imagenet#$work/source#" \
            -e "s#AWS_REGION=\.\.\.#AWS_REGION=us-east-1#" ||
        fail "no block of $page holds '$1'"
}

# Runs what is on stdin, which ends with $2, or else with 0.
commands() {
    local code=0
    cat > "$work/commands"
    echo "--- $1"
    bash -euo pipefail "$work/commands" || code=$?
    [ "$code" = "${2:-0}" ] || fail "$1 ended with $code"
}

# Runs what is on stdin, which ends with a server, and waits until it listens.
serve() {
    local log="$work/$1.log"
    cat > "$work/$1.commands"
    echo "--- $1"
    bash -euo pipefail "$work/$1.commands" > "$log" 2>&1 &
    for _ in $(seq 300); do
        grep -q '^listening on' "$log" && return
        sleep 0.1
    done
    fail "$1 does not listen: $(cat "$log")"
}

# Runs a command that is to end with an error that says this.
refused() {
    local told=$1
    shift
    if "$@" > "$work/refused" 2>&1; then fail "$* was not refused"; fi
    grep -q -- "$told" "$work/refused" || fail "$*: $(cat "$work/refused")"
}

# Runs a command until it succeeds.
until_ok() {
    for _ in $(seq 600); do
        "$@" > "$work/tried" 2>&1 && return
        sleep 0.1
    done
    fail "$*: $(cat "$work/tried")"
}

# How many files the dataset has.
listed() {
    dlcmd ls -R dl://imagenet | wc -l
}

# Ends all servers, as their admin does.
stop() {
    local ids
    ids=$(pidof dlserver)
    kill -TERM $ids
    for _ in $(seq 300); do
        pidof dlserver > "$work/running" || return 0
        sleep 0.1
    done
    fail "servers go on"
}

# These processes see other files than the machine does.
mount -t tmpfs tmpfs /var/lib
cp -a /etc /var/lib/etc
mount --bind /var/lib/etc /etc
rm -rf /etc/redis /etc/diesel
mkdir -p /etc/redis /var/lib/redis
mount -t tmpfs tmpfs /usr/local/bin
cp "$programs/dlserver" "$programs/dlcmd" /usr/local/bin
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$work
ip link set lo up
for host in 1 2 3 5 6; do
    ip addr add "10.0.0.$host/32" dev lo
done
mkdir -p "$work/source/folder" "$work/admin"
for number in $(seq 40); do
    head -c 3000 /dev/urandom > "$work/source/folder/$number"
done

# One box, as whoever is there and as a user of its own.
block 'dlserver --data /var/lib/diesel' | serve one-box
dlcmd put "$work/source" dl://imagenet
stop
rm -rf /var/lib/diesel
block 'useradd --system' | serve one-box-of-a-user
[ "$(stat -c '%U %a' /var/lib/diesel)" = 'diesel 700' ] || fail "the folder is somebody else's"
dlcmd put "$work/source" dl://imagenet
block 'dlcmd purge --all' | commands maintenance
block 'rsync -a' | commands backup
stop
block 'rm -rf /var/lib/diesel/meta' | serve one-box-without-metadata
refused 'recover --all' dlcmd ls dl://imagenet
block '# on the box itself' | commands recover-one-box
[ "$(listed)" = 40 ] || fail "$(listed) files are on the box"
stop
block '--meta embedded:' | head -n 1 | serve restored
block '--meta embedded:' | tail -n +2 | commands recover
dlcmd get dl://imagenet "$work/got"
diff -r "$work/source" "$work/got" || fail "the copy has other files"
stop

# A cluster: each machine has folders of its own.
cd "$work/admin"
for host in 1 2 3; do
    block 'requirepass' | sed "s/10\.0\.0\.1/10.0.0.$host/" > "$work/redis$host.commands"
    unshare --mount bash -euo pipefail -c "mount -t tmpfs tmpfs /etc/redis
        mount -t tmpfs tmpfs /var/lib/redis
        . '$work/redis$host.commands'" || fail "Redis on 10.0.0.$host"
done
for _ in $(seq 100); do
    up=0
    for host in 1 2 3; do
        for port in 7001 7002; do
            REDISCLI_AUTH=SECRET redis-cli -h 10.0.0.$host -p $port ping 2>&1 | grep -q PONG && up=$((up + 1))
        done
    done
    [ $up = 6 ] && break
    sleep 0.1
done
block '--cluster create' | commands cluster
block 'openssl req -x509' | commands certificates
mkdir -p "$work/bucket/training-data"
"$bucket" --host 127.0.0.1 --port 9000 --access-key key --secret-key secret "$work/bucket" \
    > "$work/bucket.log" 2>&1 &
export AWS_ENDPOINT=http://127.0.0.1:9000 AWS_ALLOW_HTTP=true
for host in 5 6; do
    block '--tls-cert' | sed "s/10\.0\.0\.5/10.0.0.$host/g" | serve "server-$host"
done
cd /etc/diesel
block 'datasets' | commands client
[ "$(curl --silent --show-error http://10.0.0.5:7421/healthz)" = ok ] || fail "not well"
export DIESEL_SERVER=https://10.0.0.5:7420,https://10.0.0.6:7420 DIESEL_CA=/etc/diesel/ca.pem
DIESEL_KEY=$(cat admin.key)
export DIESEL_USER=admin DIESEL_KEY
dlcmd put "$work/source" dl://imagenet
block 'dlcmd top' | commands status
block 'dlcmd purge --all' | commands maintenance-of-the-cluster

# What can be lost, each with what mends it.
cd "$work/admin"
block 'DIESEL_CA=/etc/diesel/ca.pem' > "$work/variables"
. "$work/variables"
kill -KILL "$(pgrep -f 'dlserver --listen 10.0.0.5')"
[ "$(listed)" = 40 ] || fail "the other server has $(listed) files"
block '--tls-cert' | serve server-5-again
block 'curl --fail' | commands well
redis-cli --cluster call 10.0.0.1:7001 flushall --cluster-only-masters > "$work/flushed"
refused 'recover --all' dlcmd ls dl://imagenet
block '# of all datasets' | commands recover-redis
[ "$(listed)" = 40 ] || fail "$(listed) files are back in Redis"
block 'flushall' | commands redis-set-back
[ "$(listed)" = 40 ] || fail "$(listed) files are back in an emptied Redis"
redis-cli --cluster call 10.0.0.1:7001 config set maxmemory 1mb > "$work/full"
refused maxmemory dlcmd put "$work/source" dl://other
block 'config set maxmemory' | commands redis-full
until_ok dlcmd put "$work/source" dl://other
dlcmd delete-dataset dl://other
rm -r "$work/bucket/training-data/diesel/names/imagenet"
block 'dlcmd recover dl://imagenet' | commands name
[ -d "$work/bucket/training-data/diesel/names/imagenet" ] || fail "the name is not there again"
find "$work/bucket/training-data/diesel" -name '*.c' | while read -r chunk; do
    head -c 64 /dev/urandom |
        dd of="$chunk" bs=1 seek=$(($(stat -c %s "$chunk") / 2)) conv=notrunc status=none
done
block 'verify --checksums' | commands damaged 4
block 'put --checksum /data' | commands put-again
dlcmd verify --checksums dl://imagenet > "$work/left" || true
grep -q 'put --checksum' "$work/left" && fail "still damaged: $(cat "$work/left")"
dlcmd rm dl://imagenet/folder/1
find "$work/bucket/training-data/diesel" -name '*.t' > "$work/tombstones"
[ -s "$work/tombstones" ] || fail "no tombstone is in the bucket"
while read -r tombstone; do rm "$tombstone"; done < "$work/tombstones"
block '# names it' | commands lost-tombstone 4
block '# deletes them again' | commands deleted-again
dlcmd verify dl://imagenet
dlcmd put "$work/source" dl://imagenet
# A replica that has no copy yet never takes its primary's place.
for host in 1 2 3; do
    until_ok sh -c "redis-cli -h 10.0.0.$host -p 7002 info replication | grep master_link_status:up"
done
kill -KILL "$(pgrep -f 'redis-server 10.0.0.1:7001')"
until_ok sh -c 'redis-cli -h 10.0.0.2 -p 7001 cluster nodes | grep 10.0.0.1:7001 | grep -q "fail "'
until_ok sh -c 'redis-cli -h 10.0.0.2 -p 7001 cluster info | grep cluster_state:ok'
until_ok curl --fail --silent http://10.0.0.5:7421/healthz
block 'recover --since 1h' | commands look-again
cd /etc/diesel
dlcmd user --users users rekey admin --keep-old > new.key
DIESEL_KEY=$(cat new.key)
for _ in $(seq 100); do
    dlcmd datasets > "$work/datasets" 2>&1 && break
    sleep 0.2
done
dlcmd user --users users drop-old admin
[ "$(cat "$work/datasets")" = imagenet ] || fail "by the new key: $(cat "$work/datasets")"
dlcmd get dl://imagenet "$work/from-cluster"
diff -r "$work/source" "$work/from-cluster" || fail "the cluster has other files"
stop
echo "operations: done"
