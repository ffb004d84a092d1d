//! Housekeeping, datasets and mounts.
//!
//! Must hold: a dataset is deleted by its name alone, never by a folder's.
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::{OsString, c_char};
use std::time::Duration;

use libdiesel::admin::PurgeRequest;
use libdiesel::{Client, ConnectOptions, FilePath, ListEntry, Mount, MountOptions};

use crate::arguments::{Output, check_flags, local};
use crate::context::DL_context;
use crate::failure::{DL_status, Failure};
use crate::list::DL_list;
use crate::options::{DL_options, Settings, address as address_of};
use crate::status::call;

/// Counts, and removes nothing.
pub const DL_DRY_RUN: u32 = 1;
/// Removes old versions that jobs still lease.
pub const DL_FORCE: u32 = 2;

/// The result of a purge.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DL_purged {
    /// Removed objects.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Chunks whose files were moved.
    pub rewritten: u64,
    /// Unneeded objects, left for a later purge.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Bytes to be reclaimed by this purge and later ones, of DL_DRY_RUN.
    pub reclaimable_bytes: u64,
}

/// Reclaims the space of deleted and overwritten files of the dataset (paper, DL_purge) that nobody
/// needed for a time; stores what was done where purged is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_purge(
    context: *const DL_context,
    grace_s: u64,
    flags: u32,
    purged: *mut DL_purged,
) -> DL_status {
    // SAFETY: the caller gives a handle and room for a result.
    call(|| unsafe {
        let (context, place) = (DL_context::of(context)?, Output::optional(purged));
        check_flags(flags, DL_DRY_RUN | DL_FORCE, "flags")?;
        let request = PurgeRequest {
            dataset: Some(context.with(|dataset| dataset.info().name.clone())),
            grace: Duration::from_secs(grace_s),
            dry_run: flags & DL_DRY_RUN != 0,
            force: flags & DL_FORCE != 0,
        };
        let mut done = DL_purged::default();
        let mut problem = None;
        for of in context.client.purge(request, &mut |_| {})? {
            done.removed += of.removed;
            done.removed_bytes += of.removed_bytes;
            done.rewritten += of.rewritten;
            done.waiting += of.waiting;
            done.waiting_bytes += of.waiting_bytes;
            done.reclaimable_bytes += of.reclaimable_bytes;
            problem = problem.or_else(|| of.problems.first().cloned());
        }
        place.set(done);
        match problem {
            None => Ok(()),
            Some(why) => Err(Failure::new(DL_status::DL_PARTLY, why)),
        }
    })
}

/// Lists the datasets that the user may read, by name, as folders. Close with DL_ls_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_datasets(
    options: *const DL_options,
    list: *mut *mut DL_list,
) -> DL_status {
    // SAFETY: the caller gives options or NULL, and room for a list.
    call(|| unsafe {
        let list = Output::needed(list, "list")?;
        list.set(std::ptr::null_mut());
        let client = Client::connect(Settings::of(options)?.client()?)?;
        let listed = client.dataset_names()?;
        let unread = listed.unread.iter().map(|unread| unread.name.to_string());
        let names = listed.found.iter().map(ToString::to_string).chain(unread);
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        let folder = |name: String| {
            let folder = FilePath::new(name).map_err(|why| Failure::invalid(why.to_string()))?;
            Ok(ListEntry::Folder(folder))
        };
        list.set(DL_list::new(names.into_iter().map(folder)));
        Ok(())
    })
}

/// Deletes the dataset at an address with all its files (paper, DL_delete_dataset), for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_delete_dataset(
    address: *const c_char,
    options: *const DL_options,
) -> DL_status {
    // SAFETY: the caller gives a text, and options or NULL.
    call(|| unsafe {
        let (name, folder) = address_of(address, "address")?;
        if !folder.is_root() {
            let text =
                format!("{name}/{folder} is a folder; DL_delete deletes files by their paths");
            return Err(Failure::invalid(text));
        }
        Client::connect(Settings::of(options)?.client()?)?.delete_dataset(&name)?;
        Ok(())
    })
}

/// Mounts a dataset or a folder of it, dl://NAME/FOLDER, at an empty local folder (paper, DL_mount), and
/// returns when files can be read. The mount stays after the program; DL_umount ends it. Needs the
/// program dlcmd in PATH, or named by DIESEL_AGENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_mount(
    address: *const c_char,
    options: *const DL_options,
    directory: *const c_char,
) -> DL_status {
    // SAFETY: the caller gives texts, and options or NULL.
    call(|| unsafe {
        let (name, folder) = address_of(address, "address")?;
        let (settings, directory) = (Settings::of(options)?, local(directory, "directory")?);
        let client =
            Client::connect(ConnectOptions { task: settings.task()?, ..settings.client()? })?;
        let access = settings.access.clone().completed();
        let options = MountOptions {
            folder: Some(folder),
            ca: access.ca,
            certificate: access.client_cert.zip(access.client_key),
            arguments: Vec::<OsString>::new(),
            ..MountOptions::default()
        };
        Mount::new(&client.dataset(&name)?, directory, &options)?;
        Ok(())
    })
}

/// Ends the mount at a folder (paper, DL_umount), and returns when nothing of it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_umount(directory: *const c_char) -> DL_status {
    // SAFETY: the caller gives a text.
    call(|| unsafe { Ok(Mount::at(local(directory, "directory")?)?.unmount(false)?) })
}
