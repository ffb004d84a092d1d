//! The scripts: atomic steps in Redis.
//!
//! Must hold: each script touches keys of a single shard; a second run changes nothing; no script compares
//! bytes in Lua, which would follow the locale of the server. Answers are the constants here, or counts.
//! Scripts that begin with PERSIST, which changes nothing here, also run when memory is full: Redis checks
//! only the first write of a script, and lets PERSIST pass.

use std::sync::LazyLock;

/// A script, and its name in Redis.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) code: &'static str,
    pub(super) hash: String,
}

impl Script {
    fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().to_owned() }
    }
}

/// The dataset does not exist.
pub(super) const MISSING: i64 = -1;
/// The dataset was dropped and made again, with another epoch.
pub(super) const STALE: i64 = -2;
/// The folder is large: its rows go to hashed buckets.
pub(super) const IS_LARGE: i64 = -3;

/// The shard has another life, or its stamp another value.
pub(super) const OTHER_LIFE: i64 = -1;
/// Another process holds the shard.
pub(super) const OTHER_PROCESS: i64 = -2;
/// The shard belongs to another chunk store.
pub(super) const OTHER_STORE: i64 = -3;

/// The job has its largest number of members.
pub(super) const CROWDED: i64 = -1;

/// The commit point. Root, log, todo; epoch, object id, member of the log, writer and time, stamp, 1 for a
/// tombstone. Answers 1 for a new object, 0 for a known object, 2 where the object had another member.
pub(super) static APPEND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local root = redis.call('HMGET', KEYS[1], 'record', 'epoch', 'last')
if not root[1] then return -1 end
if root[2] ~= ARGV[1] then return -2 end
local id = ARGV[2]
local found = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. id, '+', 'LIMIT', 0, 1)[1]
if found and string.sub(found, 1, 16) == id then
    if redis.call('HGET', KEYS[3], id) == ARGV[4] then return 1 end
    redis.call('HDEL', KEYS[1], 'counted')
    redis.call('HINCRBY', KEYS[1], 'changes', 1)
    redis.call('HSET', KEYS[3], id, ARGV[4])
    if found ~= ARGV[3] then
        redis.call('ZADD', KEYS[2], 0, ARGV[3])
        redis.call('ZREM', KEYS[2], found)
        if tonumber(root[3] or 0) < tonumber(ARGV[5]) then
            redis.call('HSET', KEYS[1], 'last', ARGV[5])
        end
        return 2
    end
    return 0
end
if ARGV[6] == '1' then redis.call('PERSIST', KEYS[1]) end
redis.call('ZADD', KEYS[2], 0, ARGV[3])
redis.call('HSET', KEYS[1], 'objects', redis.call('ZCARD', KEYS[2]))
redis.call('HDEL', KEYS[1], 'counted')
if ARGV[6] == '1' then redis.call('HINCRBY', KEYS[1], 'tombstones', 1) end
if tonumber(root[3] or 0) < tonumber(ARGV[5]) then redis.call('HSET', KEYS[1], 'last', ARGV[5]) end
redis.call('HSET', KEYS[3], id, ARGV[4])
return 1
",
    )
});

/// Writes rows into a bucket. For each name the first row stays, and no other row of the new row's entry. The
/// bucket; its most rows when it is the first bucket of its folder, the number of the argument with the first
/// file, the range of the files' names, then folders and files in order. Answers 0, or [`IS_LARGE`] without
/// any write where the bucket would have too many rows.
pub(super) static APPLY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local key = KEYS[1]
local files = tonumber(ARGV[2])
local is_new = files > #ARGV or redis.call('ZLEXCOUNT', key, ARGV[3], ARGV[4]) == 0
local function name_of(row) return string.sub(row, 1, string.find(row, '\0', 1, true)) end
local function versions(row) return '[' .. name_of(row) .. '\1', '(' .. name_of(row) .. '\2' end
local function entry_of(row)
    local holder = #name_of(row) + 2
    if string.byte(row, holder + 28) ~= 1 then holder = holder + 29 end
    return string.sub(row, holder + 8, holder + 27)
end
if ARGV[1] ~= '' then
    if redis.call('ZSCORE', key, '\0') then return -3 end
    local rows, most = redis.call('ZCARD', key), tonumber(ARGV[1])
    if rows + #ARGV - 4 > most then
        local more = 0
        for i = 5, files - 1 do
            if not redis.call('ZSCORE', key, ARGV[i]) then more = more + 1 end
        end
        for i = files, #ARGV do
            if is_new or redis.call('ZLEXCOUNT', key, versions(ARGV[i])) == 0 then more = more + 1 end
        end
        if more > 0 and rows + more > most then return -3 end
    end
end
local from = 5
while from <= #ARGV do
    local rows = {}
    for i = from, math.min(from + 999, #ARGV) do
        rows[#rows + 1] = '0'
        rows[#rows + 1] = ARGV[i]
    end
    redis.call('ZADD', key, unpack(rows))
    from = from + 1000
end
if not is_new then
    for i = files, #ARGV do
        local found, is_first = redis.call('ZRANGEBYLEX', key, versions(ARGV[i])), true
        for j = 1, #found do
            local is_same = found[j] == ARGV[i]
            if is_first and (is_same or #found == 1 or entry_of(found[j]) ~= entry_of(ARGV[i])) then
                is_first = false
            else
                redis.call('ZREM', key, found[j])
            end
        end
    end
end
return 0
",
    )
});

/// The next stamp, as text. Root; now.
pub(super) static STAMP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local root = redis.call('HMGET', KEYS[1], 'record', 'given', 'last')
if not root[1] then return -1 end
local last = math.max(tonumber(root[2] or 0), tonumber(root[3] or 0))
local stamp = string.format('%.0f', math.max(tonumber(ARGV[1]), last + 1))
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'given', stamp)
return stamp
",
    )
});

/// Replaces a dataset's record. Root; the record as read or nothing, the new record, an epoch. Answers 1, or
/// 0 where another record is there.
pub(super) static PUT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local record = redis.call('HGET', KEYS[1], 'record') or ''
if record ~= ARGV[2] then
    if record ~= ARGV[1] then return 0 end
    if record ~= '' then redis.call('PERSIST', KEYS[1]) end
    redis.call('HSET', KEYS[1], 'record', ARGV[2])
end
redis.call('HSETNX', KEYS[1], 'epoch', ARGV[3])
return 1
",
    )
});

/// Ends a dataset. Root, log, todo; epoch.
pub(super) static KILL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
",
    )
});

/// Replaces a field, such as a name. The hash; field, the value as read or nothing, the new value or nothing.
/// Answers 1, or 0 where another value is there.
pub(super) static REPLACE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local value = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if value == ARGV[3] then return 1 end
if value ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
",
    )
});

/// Takes an object off the log. Root, log, todo; epoch, object id. Answers 1 where the log had the object.
pub(super) static RETIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local root = redis.call('HMGET', KEYS[1], 'record', 'epoch')
if not root[1] then return -1 end
if root[2] ~= ARGV[1] then return -2 end
local id = ARGV[2]
redis.call('HDEL', KEYS[3], id)
local found = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. id, '+', 'LIMIT', 0, 1)[1]
if not found or string.sub(found, 1, 16) ~= id then return 0 end
redis.call('ZREM', KEYS[2], found)
redis.call('HSET', KEYS[1], 'objects', redis.call('ZCARD', KEYS[2]))
redis.call('HINCRBY', KEYS[1], 'changes', 1)
redis.call('HINCRBY', KEYS[1], 'retired', 1)
redis.call('HDEL', KEYS[1], 'counted')
return 1
",
    )
});

/// Stores a count, if still valid. Root, todo; epoch, objects, version, files, bytes, changes.
pub(super) static COUNTED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local root = redis.call('HMGET', KEYS[1], 'epoch', 'objects', 'changes')
if root[1] ~= ARGV[1] or (root[2] or '0') ~= ARGV[2] or (root[3] or '0') ~= ARGV[6] then return 0 end
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'counted', ARGV[2], 'version', ARGV[3], 'files', ARGV[4],
    'bytes', ARGV[5])
return 1
",
    )
});

/// Notes that the dataset has large folders. Root; epoch.
pub(super) static LARGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'large', 1)
return 1
",
    )
});

/// Begins a rebuild. The mark; a number, for a shard without a life. Answers run and life of the shard.
pub(super) static BEGIN_REBUILD: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('PERSIST', KEYS[1])
redis.call('HSETNX', KEYS[1], 'life', ARGV[1])
local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
local run = string.match(info, 'run_id:(%w+)') .. ':' .. string.match(info, 'master_replid:(%w+)')
return {run, redis.call('HGET', KEYS[1], 'life')}
",
    )
});

/// Marks a shard as whole. The mark; a field, the required value of the field, the run in which the value
/// was read, the chunk store, the runs of all primaries, each between blanks, the time in seconds. Answers 1,
/// [`OTHER_LIFE`], [`OTHER_STORE`], or [`OTHER_PROCESS`] where the value was read from a process that is gone.
pub(super) static CONFIRM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('PERSIST', KEYS[1])
local mark = redis.call('HMGET', KEYS[1], ARGV[1], 'id')
if mark[1] ~= ARGV[2] then return -1 end
if mark[2] and mark[2] ~= ARGV[4] then return -3 end
local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
local run = string.match(info, 'run_id:(%w+)') .. ':' .. string.match(info, 'master_replid:(%w+)')
if run ~= ARGV[3] and not string.find(ARGV[5], ' ' .. ARGV[3] .. ' ', 1, true) then return -2 end
redis.call('HSET', KEYS[1], 'id', ARGV[4], 'run', run, 'time', ARGV[6])
return 1
",
    )
});

/// Notes that Redis dropped keys. The mark, which then names no run and no life: the shard counts as lost. Its
/// copy of the identity stays.
pub(super) static DROPPED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('PERSIST', KEYS[1])
redis.call('HDEL', KEYS[1], 'life', 'time')
redis.call('HSET', KEYS[1], 'run', 'dropped')
return 1
",
    )
});

/// Takes, renews or ends the turn to rebuild. The mark of the shard, the turn; the owner, the time in ms that the
/// turn lasts, 0 to end the turn. Answers 1, or 0 while another owner has the turn.
pub(super) static TURN: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('PERSIST', KEYS[1])
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
    redis.call('DEL', KEYS[2])
else
    redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
return 1
",
    )
});

/// A command with a single key, for deletes, also when memory is full. The key; the command and arguments.
pub(super) static ROOM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('PERSIST', KEYS[1])
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
",
    )
});

/// Adds deleted entries to the bitmap of their chunk, also when memory is full. The bitmap; the new bits.
/// Answers the length. (BITOP needs a second key, which Redis refuses while a slot moves.)
pub(super) static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('PERSIST', KEYS[1])
local short, long = ARGV[1], redis.call('GET', KEYS[1]) or ''
if #short > #long then short, long = long, short end
local both = {}
for i = 1, #short do
    both[i] = string.char(bit.bor(string.byte(short, i), string.byte(long, i)))
end
redis.call('SET', KEYS[1], table.concat(both) .. string.sub(long, #short + 1))
return #long
",
    )
});

/// A heartbeat of a training job, or the end of a member. The job; the field of the member, its record, now,
/// the time from the last heartbeat to a member's death, the time in ms to the expiry of the job, most
/// members, version and secret or nothing, the end of the lease, 1 when the member leaves. Answers the hash
/// to a heartbeat with a job and to the last leaving member, otherwise nothing or [`CROWDED`].
pub(super) static MEMBERS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('PERSIST', KEYS[1])
if ARGV[9] == '1' then redis.call('HDEL', KEYS[1], ARGV[1]) end
local hash, seen, now, living = redis.call('HGETALL', KEYS[1]), {}, tonumber(ARGV[3]), 0
for i = 1, #hash, 2 do
    if string.sub(hash[i], 1, 1) == 'm' then
        seen[#seen + 1] = {hash[i], tonumber(string.match(hash[i + 1], '^%d+'))}
        now = math.max(now, seen[#seen][2])
    end
end
local is_in = false
for i = 1, #seen do
    if seen[i][2] + tonumber(ARGV[4]) > now then
        living = living + 1
        is_in = is_in or seen[i][1] == ARGV[1]
    else
        redis.call('HDEL', KEYS[1], seen[i][1])
    end
end
if living == 0 then
    local last = redis.call('HGETALL', KEYS[1])
    redis.call('DEL', KEYS[1])
    if ARGV[9] == '1' then return #last > 0 and last end
    if ARGV[7] == '' then return false end
    redis.call('HSET', KEYS[1], 't', ARGV[7], 'u', ARGV[8])
elseif ARGV[7] ~= '' then
    local terms = redis.call('HMGET', KEYS[1], 't', 'u')
    local is_same = string.sub(terms[1], 1, 24) == string.sub(ARGV[7], 1, 24)
    if is_same and tonumber(terms[2]) < tonumber(ARGV[8]) then
        redis.call('HSET', KEYS[1], 'u', ARGV[8])
    end
end
local answer = false
if ARGV[9] ~= '1' then
    if is_in or living < tonumber(ARGV[6]) then
        redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
        answer = redis.call('HGETALL', KEYS[1])
    else
        answer = -1
    end
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return answer
",
    )
});

/// All scripts but [`DROPPED`], for a new connection.
pub(super) fn all() -> [&'static Script; 15] {
    [
        &APPEND,
        &APPLY,
        &STAMP,
        &PUT,
        &KILL,
        &REPLACE,
        &RETIRE,
        &COUNTED,
        &LARGE,
        &BEGIN_REBUILD,
        &CONFIRM,
        &TURN,
        &ROOM,
        &DELETE,
        &MEMBERS,
    ]
}
