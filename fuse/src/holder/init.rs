//! The first request of a mount: the holder answers, so a server needs no state of the kernel.
//!
//! Must hold: only features offered by the kernel are chosen.

use std::io;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::abi::{InitIn, InitOut, Operation, Request, feature};
use crate::channel::{Channel, REQUEST_BYTES};
use crate::messages::Features;

/// The newest version of the protocol that is spoken here, and the oldest.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
const MINOR_MIN: u32 = 31;

/// The version with the notification INC_EPOCH.
const MINOR_OF_EPOCHS: u32 = 44;

/// Time for the first request, which follows the mount at once.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pages of a read, at most: 1 MiB.
const PAGES_MAX: u16 = 256;

const WANTED: u64 = feature::ASYNC_READ
    | feature::AUTO_INVAL_DATA
    | feature::DO_READDIRPLUS
    | feature::READDIRPLUS_AUTO
    | feature::NO_OPEN
    | feature::PARALLEL_DIROPS
    | feature::MAX_PAGES
    | feature::NO_OPENDIR
    | feature::INIT_EXT
    | feature::HAS_RESEND;

/// Answers the first request of the kernel.
pub(crate) fn greet(channel: &Channel) -> io::Result<Features> {
    if !channel.is_ready(TIMEOUT)? {
        let why = "the kernel sends no first request: the connection is in use already";
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    let mut buffer = vec![0; REQUEST_BYTES];
    let ended = || io::Error::other("the mount ended before its first request");
    let length = channel.next(&mut buffer)?.ok_or_else(ended)?;
    let request = Request::of(buffer.get(..length).unwrap_or_default());
    let Some(Request { header, operation: Operation::Init(init) }) = request else {
        return Err(io::Error::other("the first request of the mount is another than INIT"));
    };
    if init.major != MAJOR || init.minor < MINOR_MIN {
        let why = format!(
            "the kernel speaks version {}.{} of FUSE; {MAJOR}.{MINOR_MIN} is needed (Linux 5.4)",
            init.major, init.minor
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let flags = offered(&init) & WANTED;
    let answer = InitOut {
        major: MAJOR,
        minor: init.minor.min(MINOR),
        max_readahead: init.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: 64,
        congestion: 48,
        max_write: 4_096,
        time_gran: 1,
        max_pages: PAGES_MAX,
        ..InitOut::default()
    };
    channel.answer(header.unique, &[answer.as_bytes()])?;
    let resends = flags & feature::HAS_RESEND != 0;
    Ok(Features { resends, has_epochs: init.minor >= MINOR_OF_EPOCHS })
}

fn offered(init: &InitIn) -> u64 {
    u64::from(init.flags) | u64::from(init.flags2) << 32
}
