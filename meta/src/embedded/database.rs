//! The handle to the redb file: opened, opened again after a failed write, closed.
//!
//! Must hold: at most one transaction writes. All waits here are on blocking threads. After a failed read or
//! write of the file, redb gives no more answers; opening the file again brings back the last durable commit.
//! redb panics over some damaged pages: the panic becomes an error, and the file is opened again.

use std::cell::Cell;
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, PoisonError, RwLock};

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, WriteTransaction};

use crate::{Error, Kind};

/// Opens the file, or the substitute of a test.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>;

/// Modes of a created folder and of its files: file names are private to the owner.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Opens `dir/meta.redb`, and creates directory and file if missing. The opener locks the directory, also
/// while the file is opened again.
pub(super) fn in_directory(dir: PathBuf, cache_bytes: usize) -> Result<Opener, redb::Error> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(&dir)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(dir.join("meta.lock"))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => redb::Error::DatabaseAlreadyOpen,
        TryLockError::Error(error) => error.into(),
    })?;
    Ok(Box::new(move || {
        // The lock ends with the opener or the process.
        let _held = &lock;
        let (file, new) = (dir.join("meta.redb"), dir.join("meta.redb.new"));
        let open = |path: &Path| Database::builder().set_cache_size(cache_bytes).create(path);
        if file.try_exists()? {
            return Ok(open(&file)?);
        }
        // redb can't open a half-made file: the file gets its name when complete.
        if new.try_exists()? {
            fs::remove_file(&new)?;
        }
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
        let database = open(&new)?;
        fs::rename(&new, &file)?;
        for dir in [Some(dir.as_path()), dir.parent()].into_iter().flatten() {
            // The parent of a relative path of one part is the empty path.
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            fs::File::open(dir)?.sync_all()?;
        }
        Ok(database)
    }))
}

pub(super) struct File {
    open: RwLock<Option<Open>>,
    broken: AtomicBool,
}

struct Open {
    opener: Opener,
    /// None when the file could not be opened again.
    database: Option<Database>,
}

impl File {
    pub(super) fn open(opener: Opener) -> Result<Self, redb::Error> {
        let database = Some(caught(&opener)?);
        let open = RwLock::new(Some(Open { opener, database }));
        Ok(Self { open, broken: AtomicBool::new(false) })
    }

    /// Gives `work` a consistent view of the file.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.with(|database| work(&database.begin_read()?))
    }

    /// Runs `work` in a transaction, and commits on success. A durable commit includes all earlier commits.
    pub(super) fn write<T>(
        &self,
        durable: bool,
        work: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            if durable {
                // After a crash, an open then reads the state of the allocator, not the whole file.
                transaction.set_quick_repair(true);
            } else {
                transaction.set_durability(Durability::None)?;
            }
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let database = open.as_ref().and_then(|open| open.database.as_ref());
        let database = database.ok_or(redb::Error::DatabaseClosed)?;
        // The outer result tells of a panic, the inner result is redb's answer.
        let worked = caught(|| Ok(work(database)));
        if let Err(_) | Ok(Err(redb::Error::Io(_) | redb::Error::PreviousIo)) = worked {
            self.broken.store(true, Ordering::Release);
        }
        worked?
    }

    /// Whether the file must be opened again before it answers.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Opens the file again; only durable commits are left.
    pub(super) fn reopen(&self) -> Result<(), redb::Error> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let open = open.as_mut().ok_or(redb::Error::DatabaseClosed)?;
        let_go(open.database.take());
        open.database = Some(caught(&open.opener)?);
        self.broken.store(false, Ordering::Release);
        Ok(())
    }

    /// Closes the file.
    pub(super) fn close(&self) {
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        // The opener, and with it the lock, outlives the database.
        if let Some(Open { opener, database }) = open {
            let_go(database);
            drop(opener);
        }
    }
}

thread_local! {
    /// Whether a panic on this thread becomes an error in [`caught`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Logs the origin of a caught panic; its error is for the user. Other panics go to the previous hook.
fn log_caught_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_CAUGHT.get() {
                let at = info.location().map(ToString::to_string).unwrap_or_default();
                tracing::error!(at, "panicked over the metadata file, which is taken for damaged");
            } else {
                before(info);
            }
        }));
    });
}

/// redb may also meet damage while the database is dropped.
impl Drop for File {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs `work` of redb; a panic in `work` means a damaged file.
///
/// Unwind-safe: after an error from here the database is only dropped, in [`let_go`], and the file is opened
/// again. No call sees a half-made change.
fn caught<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    log_caught_panics();
    IS_CAUGHT.set(true);
    let worked = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(false);
    worked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let why = text.unwrap_or("a page makes no sense");
        Err(redb::Error::Corrupted(format!("the file is damaged: {why}")))
    })
}

/// Drops a database. The drop writes to the file, and may meet the same damage again.
fn let_go(database: Option<Database>) {
    let dropped = caught(|| {
        drop(database);
        Ok(())
    });
    if let Err(error) = dropped {
        tracing::debug!(%error, "let go of a damaged metadata file");
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("broken", &self.broken).finish_non_exhaustive()
    }
}

/// Errors of redb with a kind of their own. redb may add errors: all other errors are worth a retry.
pub(super) fn kind_of(error: &redb::Error) -> Kind {
    match error {
        redb::Error::DatabaseAlreadyOpen => Kind::InUse,
        redb::Error::Corrupted(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableIsMultimap(_) => Kind::Corrupt,
        redb::Error::UpgradeRequired(_) | redb::Error::Unsupported => Kind::Unsupported,
        // The tables of a dataset are removed together with its row.
        redb::Error::TableDoesNotExist(_) => Kind::Missing,
        redb::Error::Io(error) => match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Kind::Full
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Denied,
            // The file is not a database.
            ErrorKind::InvalidData => Kind::Corrupt,
            _ => Kind::Unavailable,
        },
        _ => Kind::Unavailable,
    }
}

pub(super) fn failed(
    action: &'static str,
    what: impl fmt::Display,
) -> impl FnOnce(redb::Error) -> Error {
    move |error| match error {
        redb::Error::DatabaseAlreadyOpen => {
            let why = "another server has it open; stop that one, or give this one its own folder";
            Error::because(Kind::InUse, action, what, why)
        }
        error => {
            let kind = kind_of(&error);
            if kind == Kind::Full {
                let why =
                    format!("{error}; free some, or give the server a folder on another disk");
                return Error::because(kind, action, what, why);
            }
            Error::because(kind, action, what, error)
        }
    }
}
