//! Questions to Redis, and the expected types of their answers.
//!
//! Must hold: a question goes to a single shard. An answer of an unexpected type is an error, not nothing.

use redis::{Cmd, ToRedisArgs, Value};

use super::failure::Failure;
use super::keys::Key;
use super::scripts::Script;
use super::slots::Shard;

/// The usual number of arguments.
const ARGUMENTS: usize = 8;

/// A command, and the shard whose primary answers.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) shard: Shard,
    pub(super) cmd: Cmd,
}

impl Ask {
    /// A command whose first argument is a key.
    pub(super) fn to(key: &Key, command: &str) -> Self {
        let mut cmd = Cmd::with_capacity(ARGUMENTS, command.len() + 2 * key.bytes.len());
        cmd.arg(command).arg(&key.bytes);
        Self { shard: key.shard, cmd }
    }

    /// A script call with a key and other keys of its shard.
    pub(super) fn script(script: &Script, key: &Key, others: &[&Key]) -> Self {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash).arg(1 + others.len()).arg(&key.bytes);
        for other in others {
            cmd.arg(&other.bytes);
        }
        Self { shard: key.shard, cmd }
    }

    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }
}

/// A string, or nothing.
pub(super) fn bytes(value: Value) -> Result<Option<Vec<u8>>, Failure> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        _ => Err(Failure::unexpected()),
    }
}

pub(super) fn number(value: &Value) -> Result<i64, Failure> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(Failure::unexpected()),
    }
}

/// A list; `part` reads each item.
pub(super) fn list<T>(
    value: Value,
    part: impl Fn(Value) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    match value {
        Value::Array(parts) | Value::Set(parts) => parts.into_iter().map(part).collect(),
        _ => Err(Failure::unexpected()),
    }
}

/// The parts of a list, borrowed.
pub(super) fn parts(value: &Value) -> Result<&[Value], Failure> {
    match value {
        Value::Array(parts) | Value::Set(parts) => Ok(parts),
        _ => Err(Failure::unexpected()),
    }
}

/// A string, borrowed.
pub(super) fn string(value: &Value) -> Result<&[u8], Failure> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        _ => Err(Failure::unexpected()),
    }
}

pub(super) fn strings(value: Value) -> Result<Vec<Vec<u8>>, Failure> {
    list(value, |part| bytes(part)?.ok_or_else(Failure::unexpected))
}

/// Strings or nothing, as many as the command asked for.
pub(super) fn fields<const N: usize>(value: Value) -> Result<[Option<Vec<u8>>; N], Failure> {
    list(value, bytes)?.try_into().map_err(|_| Failure::unexpected())
}

/// A field of a hash and its value.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// All fields of a hash and their values.
pub(super) fn pairs(value: Value) -> Result<Vec<Pair>, Failure> {
    let mut parts = strings(value)?.into_iter();
    let mut pairs = Vec::new();
    while let (Some(field), Some(value)) = (parts.next(), parts.next()) {
        pairs.push((field, value));
    }
    Ok(pairs)
}

/// A number stored as text; nothing is zero.
pub(super) fn decimal(text: Option<&Vec<u8>>) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(0) };
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Failure::corrupt("a number in Redis can't be read"))
}
