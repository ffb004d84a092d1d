//! Epochs: the files of a rank, or of a worker of its loader, in shuffled order (paper, 4.3).
//!
//! Must hold: a failed call skips no file. An unreadable file is reported, and the next one follows.
#![expect(non_camel_case_types, reason = "names of the C library")]
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::c_char;

use libdiesel::{
    Batches, DEFAULT_GROUP, OrderSettings, Partition, ResumeToken, ShuffleOptions, Tail, Worker,
};

use crate::arguments::{
    Output, buffer as buffer_of, check_flags, optional, store_text, structure, value,
};
use crate::bytes::{DL_bytes, clear, store};
use crate::context::DL_context;
use crate::failure::{DL_status, Failure};
use crate::status::call;

/// Reads a few files twice, so that no file is left out when the ranks do not divide the files.
pub const DL_PAD: u32 = 1;

/// The order of an epoch. Set all to 0, then `size` to sizeof(DL_order). 0 stands for the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DL_order {
    /// sizeof(DL_order).
    pub size: usize,
    /// The number of the training.
    pub seed: u64,
    /// The number of the epoch, from 0; each has another order.
    pub epoch: u64,
    /// Files read before, by this rank or worker, since the begin or the token.
    pub read: u64,
    /// A token of DL_token to go on from, or NULL. Its seed, epoch and group replace those above.
    pub resume: *const c_char,
    /// Chunks whose files are shuffled together: 100.
    pub group: u32,
    /// The rank, from 0.
    pub rank: u32,
    /// The number of ranks: 1.
    pub world: u32,
    /// Machines whose ranks share chunks: 1, for no difference between machines.
    pub nodes: u32,
    /// The worker of the rank, from 0.
    pub worker: u32,
    /// Workers of the rank: 1.
    pub workers: u32,
    /// Files of a batch, which the workers take in turn: 1.
    pub batch: u32,
    /// DL_PAD.
    pub flags: u32,
}

impl DL_order {
    /// # Safety
    /// The token is a text or NULL.
    unsafe fn options(&self) -> Result<ShuffleOptions, Failure> {
        check_flags(self.flags, DL_PAD, "order.flags")?;
        let or = |given: u32, default| if given == 0 { default } else { given };
        let nodes = or(self.nodes, 1);
        let order = OrderSettings {
            world: or(self.world, 1),
            partition: if nodes > 1 { Partition::Local { nodes } } else { Partition::Global },
            tail: if self.flags & DL_PAD == 0 { Tail::Drop } else { Tail::Pad },
            ..OrderSettings::new(self.seed, self.epoch, or(self.group, DEFAULT_GROUP))
        };
        let (workers, batch) = (or(self.workers, 1), or(self.batch, 1));
        // SAFETY: a text or NULL.
        let token = unsafe { optional(self.resume) }.map(|token| {
            let token = String::from_utf8_lossy(token);
            token
                .parse::<ResumeToken>()
                .map_err(|why| Failure::invalid(format!("order.resume: {why}")))
        });
        let worker = (workers > 1).then_some(Worker { number: self.worker, workers, batch });
        Ok(ShuffleOptions {
            order,
            rank: self.rank,
            worker,
            selection: None,
            resume: token.transpose()?,
            read: self.read,
        })
    }
}

/// An epoch, for any number of threads: each file goes to one of them.
#[derive(Debug)]
pub struct DL_epoch(Batches);

impl DL_epoch {
    /// # Safety
    /// A pointer other than NULL is an epoch that is not closed.
    unsafe fn of<'a>(epoch: *const Self) -> Result<&'a Batches, Failure> {
        // SAFETY: as above.
        Ok(&unsafe { value(epoch, "epoch") }?.0)
    }
}

/// Begins an epoch (paper, DL_shuffle) in the given order; NULL is epoch 0 with all files for one
/// process. The node fetches ahead along the order. Close with DL_epoch_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_shuffle(
    context: *const DL_context,
    order: *const DL_order,
    epoch: *mut *mut DL_epoch,
) -> DL_status {
    // SAFETY: the caller gives a handle, an order or NULL, and room for an epoch.
    call(|| unsafe {
        let context = DL_context::of(context)?;
        let place = Output::needed(epoch, "epoch")?;
        place.set(std::ptr::null_mut());
        let options = match order.is_null() {
            true => ShuffleOptions::new(0, 0, DEFAULT_GROUP),
            false => structure(order, "order")?.options()?,
        };
        let dataset = context.dataset();
        let epoch = dataset.shuffle(options)?;
        let batches = Batches::new(epoch, libdiesel::Dataset::clone(&dataset));
        place.set(Box::into_raw(Box::new(DL_epoch(batches))));
        Ok(())
    })
}

/// Borrows the next files, at most n: their numbers, unless numbers is NULL, and their bytes. Stores
/// how many, 0 at the end. Release with DL_release(bytes, read). DL_PARTLY if files failed, each with
/// its status in bytes. After any other failure the next call goes on with the same files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_next(
    epoch: *mut DL_epoch,
    n: usize,
    numbers: *mut u32,
    bytes: *mut DL_bytes,
    read: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives an epoch, and room for n numbers and files.
    call(|| unsafe {
        let batches = DL_epoch::of(epoch)?;
        let read = Output::needed(read, "read")?;
        read.set(0);
        let bytes = Output::many(bytes, n, "bytes")?;
        clear(bytes, n);
        let numbers = Output::optional(numbers);
        let files = batches.read(n)?;
        read.set(files.len());
        files.iter().enumerate().for_each(|(index, (number, _))| numbers.set_at(index, *number));
        store(bytes, files.into_iter().map(|(_, file)| file))
    })
}

/// The numbers of the next files, at most n, for DL_read or DL_read_into. Stores how many, 0 at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_take(
    epoch: *mut DL_epoch,
    n: usize,
    numbers: *mut u32,
    taken: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives an epoch, and room for n numbers.
    call(|| unsafe {
        let batches = DL_epoch::of(epoch)?;
        let taken = Output::needed(taken, "taken")?;
        taken.set(0);
        let numbers = Output::many(numbers, n, "numbers")?;
        let files = batches.take(n)?;
        files.iter().enumerate().for_each(|(index, number)| numbers.set_at(index, *number));
        taken.set(files.len());
        Ok(())
    })
}

/// A token, for DL_order.resume, to go on after each rank has read the given number of files of this
/// epoch, with any number of ranks and workers; with NUL at its end, and its length without the NUL. Of
/// a buffer that is too short, the needed capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_token(
    epoch: *const DL_epoch,
    read: u64,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives an epoch, a buffer and room for a number.
    call(|| unsafe {
        let batches = DL_epoch::of(epoch)?;
        let length = Output::needed(length, "length")?;
        let room = buffer_of(buffer.cast(), capacity, "buffer")?;
        store_text(batches.epoch().token(read).to_string().as_bytes(), room, length)
    })
}

/// The number of files of the epoch for this rank or worker, from its begin or token on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_epoch_length(epoch: *const DL_epoch, files: *mut u64) -> DL_status {
    // SAFETY: the caller gives an epoch and room for a number.
    call(|| unsafe {
        let batches = DL_epoch::of(epoch)?;
        Output::needed(files, "files")?.set(batches.epoch().length());
        Ok(())
    })
}

/// Frees an epoch. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_epoch_close(epoch: *mut DL_epoch) {
    call(|| {
        if !epoch.is_null() {
            // SAFETY: the caller gives an epoch for the last time.
            drop(unsafe { Box::from_raw(epoch) });
        }
        Ok(())
    });
}
