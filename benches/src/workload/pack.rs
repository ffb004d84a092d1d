//! Packing from memory on one core: header, checksums and copy, beside memcpy of the same bytes.
//!
//! Must hold: both sides copy the same bytes into memory with mapped pages.

use std::hint::black_box;

use anyhow::Result;
use dl_format::{Attributes, ChunkId, ChunkShape, ChunkWriter, DatasetId, FilePath};
use dl_runtime::copy_checked;

use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Settings, bytes};

const TOTAL: usize = 256 << 20;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let total = settings.scaled(TOTAL as u32) as usize;
    Ok(vec![
        bench(settings, total, 4 << 10, Bar::AtLeast(1e6))?,
        bench(settings, total, 128 << 10, Bar::AtLeastTimes(0.7))?,
    ])
}

fn bench(settings: &Settings, total: usize, length: usize, bar: Bar) -> Result<Bench> {
    let source = bytes(total.max(length));
    let files: Vec<(FilePath, &[u8])> = source
        .chunks_exact(length)
        .enumerate()
        .map(|(n, data)| {
            Ok((FilePath::new(format!("n01440764/n01440764_{n}.JPEG").into_bytes())?, data))
        })
        .collect::<Result<_>>()?;
    let shape = ChunkShape::default();
    let mut scratch = vec![0; shape.size() as usize];
    let mut buffer = Vec::new();
    let count = files.len() as f64;
    // The first round only maps memory.
    let names = ["packed into chunks of 4 MiB", "memcpy of the same bytes into 4 MiB"];
    let sides = in_turns(settings.runs(), names, |_| {
        let (used, packing) = time(|| pack(&files, shape, std::mem::take(&mut buffer)))?;
        buffer = used;
        let (_, copying) = time(|| {
            let per_chunk = scratch.len() / length;
            for files in files.chunks(per_chunk) {
                for ((_, data), place) in files.iter().zip(scratch.chunks_exact_mut(length)) {
                    place.copy_from_slice(data);
                }
                black_box(&scratch);
            }
            Ok(())
        })?;
        Ok([count / packing, count / copying])
    })?;
    let settings = format!("{} files of {} KiB from memory, one core", files.len(), length >> 10);
    Ok(Bench::new(format!("pack {} KiB", length >> 10), settings, "files/s", sides, bar))
}

fn pack(files: &[(FilePath, &[u8])], shape: ChunkShape, buffer: Vec<u8>) -> Result<Vec<u8>> {
    let (id, dataset) = (ChunkId::from_bytes([1; 16]), DatasetId::from_bytes([2; 16]));
    let mut chunk = fresh_chunk(shape, buffer);
    for (path, data) in files {
        if !chunk.fits(path, data.len() as u64) {
            let (buffer, _) = chunk.seal(id, dataset).into_parts();
            chunk = fresh_chunk(shape, black_box(buffer));
        }
        chunk.append(path, Attributes::default(), data)?;
    }
    Ok(chunk.seal(id, dataset).into_parts().0)
}

/// A chunk writer with the settings of libdiesel.
fn fresh_chunk(shape: ChunkShape, buffer: Vec<u8>) -> ChunkWriter {
    ChunkWriter::new(shape, buffer).copied_by(copy_checked())
}
