//! The redb file behind one handle: opened, opened again after a failed write, closed.
//!
//! Must hold: at most one transaction writes, and all that waits here waits on a blocking thread.
//! redb answers nothing more once a read or write of the file failed; opening it again brings
//! back the last durable commit. It panics over some damaged pages: that is an error here, and
//! the file is opened again.

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

/// Opens the file, or what a test has in its place.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>;

/// Of a folder that is made, and of files in it: names of files are for their owner alone.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Opens `dir/meta.redb` and makes what is not there. Whoever has the opener has the directory
/// for itself, also while the file is opened again.
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
        // Ends with the opener, or with the process.
        let _held = &lock;
        let (file, new) = (dir.join("meta.redb"), dir.join("meta.redb.new"));
        let open = |path: &Path| Database::builder().set_cache_size(cache_bytes).create(path);
        if file.try_exists()? {
            return Ok(open(&file)?);
        }
        // redb can't open a file that it was interrupted in making, so that one gets its name
        // when it is whole.
        if new.try_exists()? {
            fs::remove_file(&new)?;
        }
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new)?;
        let database = open(&new)?;
        fs::rename(&new, &file)?;
        for dir in [Some(dir.as_path()), dir.parent()].into_iter().flatten() {
            // The parent of a relative path of one part is written as nothing.
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
    /// None when it could not be opened again.
    database: Option<Database>,
}

impl File {
    pub(super) fn open(opener: Opener) -> Result<Self, redb::Error> {
        let database = Some(caught(&opener)?);
        let open = RwLock::new(Some(Open { opener, database }));
        Ok(Self { open, broken: AtomicBool::new(false) })
    }

    /// Gives `work` one consistent view of the file.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.with(|database| work(&database.begin_read()?))
    }

    /// Runs `work` in a transaction and commits that when it succeeds. A commit that is not
    /// durable is part of the next one that is.
    pub(super) fn write<T>(
        &self,
        durable: bool,
        work: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            if durable {
                // So that an open after a crash reads the allocator's state instead of the file.
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
        // Outside is whether redb panicked, inside what it answered.
        let worked = caught(|| Ok(work(database)));
        if let Err(_) | Ok(Err(redb::Error::Io(_) | redb::Error::PreviousIo)) = worked {
            self.broken.store(true, Ordering::Release);
        }
        worked?
    }

    /// Whether the file has to be opened again before it answers.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Opens the file again; commits that were not durable are gone from it.
    pub(super) fn reopen(&self) -> Result<(), redb::Error> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let open = open.as_mut().ok_or(redb::Error::DatabaseClosed)?;
        let_go(open.database.take());
        open.database = Some(caught(&open.opener)?);
        self.broken.store(false, Ordering::Release);
        Ok(())
    }

    /// Lets go of the file.
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

/// Of a panic that becomes an error the log says in a line where it was: whoever reads that error is
/// told what to do. All others go to the hook that was there.
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

/// However it ends: redb may meet damage also while it is let go.
impl Drop for File {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs `work` of redb; a panic in it says that the file is damaged.
///
/// Sound as far as unwinding goes: after an error from here the database is only let go, in
/// [`let_go`], and the file is opened again, so nobody sees what a panic left half changed.
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

/// Drops a database, which writes to the file, and so may meet the same damage once more.
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

/// redb's errors are an open set: those with a meaning of their own, and the rest is worth a
/// retry.
pub(super) fn kind_of(error: &redb::Error) -> Kind {
    match error {
        redb::Error::DatabaseAlreadyOpen => Kind::InUse,
        redb::Error::Corrupted(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableIsMultimap(_) => Kind::Corrupt,
        redb::Error::UpgradeRequired(_) | redb::Error::Unsupported => Kind::Unsupported,
        // The tables of a dataset go in the step in which it is dropped.
        redb::Error::TableDoesNotExist(_) => Kind::Missing,
        redb::Error::Io(error) => match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Kind::Full
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Denied,
            // Not a database at all.
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
