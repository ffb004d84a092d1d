//! Mutual proof that both ends of a connection belong to the same job. The servers give a secret to
//! members only, and each end shows its knowledge of the secret.
//!
//! Must hold: an unproven caller gets 32 random bytes, may send 64 bytes within two seconds, and
//! gets nothing more. A proof is useless on another connection, and for another member, dataset or
//! version.

use std::io;
use std::time::Duration;

use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};
use dl_format::{DatasetId, MemberId, Version};
use dl_runtime::{Clock, OsRandom, Random};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit for the proof of the other end.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) const CHALLENGE: usize = 32;
const SALT: usize = 16;
const ID: usize = 16;
pub(super) const PROOF: usize = 32;
/// The first message of a caller: salt, id, proof.
pub(super) const HELLO: usize = SALT + ID + PROOF;

/// The shared key of the members of one job, dataset and version.
#[derive(Clone)]
pub(crate) struct JobKey {
    key: Key,
    dataset: DatasetId,
    version: Version,
}

impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobKey").field("dataset", &self.dataset).finish_non_exhaustive()
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
struct Exchange {
    challenge: [u8; CHALLENGE],
    salt: [u8; SALT],
    caller: MemberId,
    called: MemberId,
}

impl JobKey {
    /// From the secret given by the servers.
    pub(crate) fn new(secret: &[u8], dataset: DatasetId, version: Version) -> Self {
        Self { key: Key::new(HMAC_SHA256, secret), dataset, version }
    }

    fn message(&self, end: End, exchange: Exchange) -> Vec<u8> {
        let end = match end {
            End::Caller => b"diesel peer 2 caller",
            End::Called => b"diesel peer 2 called",
        };
        let (caller, called) = (exchange.caller.as_bytes(), exchange.called.as_bytes());
        let version = self.version.to_bytes();
        let parts: [&[u8]; 7] = [
            end,
            &exchange.challenge,
            &exchange.salt,
            caller,
            called,
            self.dataset.as_bytes(),
            &version,
        ];
        parts.concat()
    }

    fn prove(&self, end: End, exchange: Exchange) -> hmac::Tag {
        hmac::sign(&self.key, &self.message(end, exchange))
    }

    fn is_proved(&self, end: End, exchange: Exchange, proof: &[u8]) -> bool {
        hmac::verify(&self.key, &self.message(end, exchange), proof).is_ok()
    }
}

/// Proves to another agent that `me` is a member, and checks the proof of the agent `called`.
pub(crate) async fn prove(
    stream: &mut TcpStream,
    key: &JobKey,
    me: MemberId,
    called: MemberId,
    clock: &dyn Clock,
) -> io::Result<()> {
    within(clock, TIMEOUT, async {
        let mut challenge = [0; CHALLENGE];
        stream.read_exact(&mut challenge).await?;
        let exchange = Exchange { challenge, salt: random(), caller: me, called };
        let proof = key.prove(End::Caller, exchange);
        stream
            .write_all(&[&exchange.salt, me.as_bytes().as_slice(), proof.as_ref()].concat())
            .await?;
        let mut answer = [0; PROOF];
        match stream.read_exact(&mut answer).await {
            // Agents hang up on strangers.
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Err(not_a_member()),
            read => _ = read?,
        }
        if key.is_proved(End::Called, exchange, &answer) { Ok(()) } else { Err(not_a_member()) }
    })
    .await
}

/// Authenticates a caller; returns the position of the matching key, and the caller's id.
pub(crate) async fn authenticate(
    stream: &mut TcpStream,
    me: MemberId,
    keys: impl FnOnce() -> Vec<Option<JobKey>>,
    clock: &dyn Clock,
) -> io::Result<(usize, MemberId)> {
    within(clock, TIMEOUT, async {
        let challenge = random();
        stream.write_all(&challenge).await?;
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).await?;
        let (salt, rest) = hello.split_first_chunk().ok_or_else(not_a_member)?;
        let (caller, proof) = rest.split_first_chunk().ok_or_else(not_a_member)?;
        let caller = MemberId::from_bytes(*caller);
        let exchange = Exchange { challenge, salt: *salt, caller, called: me };
        let keys = keys();
        let found = keys.iter().enumerate().find_map(|(number, key)| {
            let key = key.as_ref()?;
            key.is_proved(End::Caller, exchange, proof).then_some((number, key))
        });
        let (number, key) = found.ok_or_else(not_a_member)?;
        stream.write_all(key.prove(End::Called, exchange).as_ref()).await?;
        Ok((number, caller))
    })
    .await
}

/// Ends work with another agent with a time-out.
pub(crate) async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        ended = work => ended,
        () = clock.sleep(limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn not_a_member() -> io::Error {
    let why = "handshake: the agents have different member lists or dataset versions";
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    OsRandom.fill(&mut bytes);
    bytes
}
