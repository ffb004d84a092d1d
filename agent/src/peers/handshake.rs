//! Mutual proof that both ends of a connection belong to the same job: each end shows knowledge of
//! the secret given by the servers to members only.
//!
//! Must hold: an unproven caller gets 32 random bytes, may send 64 bytes within two seconds, and
//! gets nothing more. A proof is useless on another connection, and for another member, dataset or
//! version.

use std::io;
use std::time::Duration;

use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};
use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use libdiesel::agent::{DatasetId, MemberId, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit for the proof of the other end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

const CHALLENGE: usize = 32;
const SALT: usize = 16;
const ID: usize = 16;
const PROOF: usize = 32;
/// The first message of a caller: salt, id, proof.
const HELLO: usize = SALT + ID + PROOF;

/// The shared key of the members of one job, dataset and version.
#[derive(Clone)]
pub(crate) struct Circle {
    key: Key,
    dataset: DatasetId,
    version: Version,
}

impl std::fmt::Debug for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Circle").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}

/// The end of a connection that proves itself.
#[derive(Clone, Copy)]
enum End {
    Caller,
    Called,
}

/// All values bound by a proof.
#[derive(Clone, Copy)]
struct Talk {
    challenge: [u8; CHALLENGE],
    salt: [u8; SALT],
    caller: MemberId,
    called: MemberId,
}

impl Circle {
    /// From the secret given by the servers.
    pub(crate) fn new(secret: &[u8], dataset: DatasetId, version: Version) -> Self {
        Self { key: Key::new(HMAC_SHA256, secret), dataset, version }
    }

    fn message(&self, end: End, talk: Talk) -> Vec<u8> {
        let end = match end {
            End::Caller => b"diesel peer 1 caller",
            End::Called => b"diesel peer 1 called",
        };
        let (caller, called) = (talk.caller.as_bytes(), talk.called.as_bytes());
        let version = self.version.to_bytes();
        let parts: [&[u8]; 7] =
            [end, &talk.challenge, &talk.salt, caller, called, self.dataset.as_bytes(), &version];
        parts.concat()
    }

    fn prove(&self, end: End, talk: Talk) -> hmac::Tag {
        hmac::sign(&self.key, &self.message(end, talk))
    }

    fn is_proved(&self, end: End, talk: Talk, proof: &[u8]) -> bool {
        hmac::verify(&self.key, &self.message(end, talk), proof).is_ok()
    }
}

/// Proves to another agent that `me` is a member, and checks the proof of the agent `called`.
pub(crate) async fn call(
    stream: &mut TcpStream,
    circle: &Circle,
    me: MemberId,
    called: MemberId,
) -> io::Result<()> {
    within(async {
        let mut challenge = [0; CHALLENGE];
        stream.read_exact(&mut challenge).await?;
        let talk = Talk { challenge, salt: random(), caller: me, called };
        let proof = circle.prove(End::Caller, talk);
        stream.write_all(&[&talk.salt, me.as_bytes().as_slice(), proof.as_ref()].concat()).await?;
        let mut answer = [0; PROOF];
        match stream.read_exact(&mut answer).await {
            // Agents hang up on strangers.
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Err(stranger()),
            read => _ = read?,
        }
        if circle.is_proved(End::Called, talk, &answer) { Ok(()) } else { Err(stranger()) }
    })
    .await
}

/// Authenticates a caller; returns the position of the matching key, and the caller's id.
pub(crate) async fn hear(
    stream: &mut TcpStream,
    me: MemberId,
    circles: impl FnOnce() -> Vec<Option<Circle>>,
) -> io::Result<(usize, MemberId)> {
    within(async {
        let challenge = random();
        stream.write_all(&challenge).await?;
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).await?;
        let (salt, rest) = hello.split_first_chunk().ok_or_else(stranger)?;
        let (caller, proof) = rest.split_first_chunk().ok_or_else(stranger)?;
        let caller = MemberId::from_bytes(*caller);
        let talk = Talk { challenge, salt: *salt, caller, called: me };
        let circles = circles();
        let found = circles.iter().enumerate().find_map(|(number, circle)| {
            let circle = circle.as_ref()?;
            circle.is_proved(End::Caller, talk, proof).then_some((number, circle))
        });
        let (number, circle) = found.ok_or_else(stranger)?;
        stream.write_all(circle.prove(End::Called, talk).as_ref()).await?;
        Ok((number, caller))
    })
    .await
}

async fn within<T>(talk: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        ended = talk => ended,
        () = SystemClock::new().sleep(PATIENCE) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn stranger() -> io::Error {
    let why = "one of the two is no member of the job for the other, or they read two versions";
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    OsRandom.fill(&mut bytes);
    bytes
}
