//! Reads a dataset through the cache of the node, directed by lines of the input, and checks every
//! byte. The bytes of a file follow from its path. Tests of the cache run several processes and
//! kill them.
//!
//! # Use
//!
//! `cargo run -p libdiesel --example read_cached -- make FOLDER FILES` writes such files.
//! `DIESEL_TASK=job cargo run -p libdiesel --example read_cached -- 127.0.0.1:7420 DATASET SEED` reads.
//!
//! | line | what is done before a line answers |
//! |---|---|
//! | `open` | attaches to the agent |
//! | `all` | reads every file once, in several ways |
//! | `epoch N` | reads every file in the order of an epoch |
//! | `keep N` | keeps views of N files, spread over all |
//! | `mix` | reads in all ways, keeps views for a while and forks, until the next line |

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Clock, Random, SeededRandom, SystemClock};
use libdiesel::{
    Client, ConnectOptions, Dataset, DatasetName, Epoch, ShuffleOptions, Snapshot, TaskOptions,
    View,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use xxhash_rust::xxh3::xxh3_64;

type Failed = Box<dyn Error + Send + Sync>;

/// The upper limit of the length of a file.
const LONGEST: u64 = 20_000;
/// Files of a batch.
const BATCH: usize = 16;
/// Views kept at once.
const KEPT: usize = 8;
/// Chunks of a group of an epoch.
const GROUP: u32 = 2;
/// Time after which a child counts as hanging.
const CHILD_TIMEOUT: Duration = Duration::from_secs(120);

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["make", folder, files] => make(Path::new(folder), files.parse()?),
        [servers, dataset, seed] => serve(servers, dataset, seed.parse()?),
        _ => Err("usage: read_cached make FOLDER FILES | SERVER[,SERVER...] DATASET SEED".into()),
    }
}

/// The bytes of the file at a path.
fn stamp(path: &[u8]) -> Vec<u8> {
    let seed = xxh3_64(path);
    let mut bytes = vec![0; (seed % LONGEST) as usize];
    SeededRandom::new(seed).fill(&mut bytes);
    bytes
}

/// Writes files, a hundred in each folder.
fn make(folder: &Path, files: u32) -> Result<(), Failed> {
    for number in 0..files {
        let path = format!("{:03}/{number:06}", number / 100);
        if number % 100 == 0 {
            std::fs::create_dir_all(folder.join(format!("{:03}", number / 100)))?;
        }
        std::fs::write(folder.join(&path), stamp(path.as_bytes()))?;
    }
    Ok(())
}

/// Executes the lines of the input.
fn serve(servers: &str, dataset: &str, seed: u64) -> Result<(), Failed> {
    let mut reader = None;
    let mut line = String::new();
    let mut stdin = std::io::stdin().lock();
    writeln!(std::io::stdout(), "ready")?;
    while stdin.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match (words.as_slice(), &mut reader) {
            (["open"], reader) => {
                let opened = Reader::open(servers, dataset, seed)?;
                let answer = format!("{} files", opened.snapshot.files());
                *reader = Some(opened);
                answer
            }
            (["all"], Some(reader)) => reader.read_all()?,
            (["epoch", epoch], Some(reader)) => reader.read_epoch(epoch.parse()?)?,
            (["keep", count], Some(reader)) => reader.keep(count.parse()?)?,
            (["mix"], Some(reader)) => reader.mix()?,
            (words, _) => return Err(format!("{words:?} can't be done").into()),
        };
        writeln!(std::io::stdout(), "{answer}")?;
        line.clear();
    }
    Ok(())
}

struct Reader {
    dataset: Dataset,
    snapshot: Arc<Snapshot>,
    random: SeededRandom,
    kept: VecDeque<(u32, View)>,
    epoch: Option<Epoch>,
    buffer: Vec<u8>,
    reads: u64,
    forks: u64,
}

impl Reader {
    fn open(servers: &str, dataset: &str, seed: u64) -> Result<Self, Failed> {
        let options = ConnectOptions {
            servers: servers.split(',').map(str::to_owned).collect(),
            task: Some(TaskOptions::of_process().ok_or("set DIESEL_TASK")?),
            ..ConnectOptions::default()
        };
        let dataset = Client::connect(options)?.dataset(&DatasetName::new(dataset)?)?;
        let snapshot = Arc::clone(dataset.snapshot().ok_or("there is no snapshot")?);
        let buffer = vec![0; BATCH * LONGEST as usize];
        let (random, kept) = (SeededRandom::new(seed), VecDeque::new());
        Ok(Self { dataset, snapshot, random, kept, epoch: None, buffer, reads: 0, forks: 0 })
    }

    fn below(&self, end: u64) -> u64 {
        self.random.u64() % end.max(1)
    }

    fn any(&self) -> u32 {
        self.below(self.snapshot.files().into()) as u32
    }

    fn is_right(&self, number: u32, bytes: &[u8]) -> Result<(), Failed> {
        let path = self.snapshot.path(number)?;
        if bytes == stamp(path.as_bytes()) {
            return Ok(());
        }
        Err(format!("{path} has wrong bytes, {} of them", bytes.len()).into())
    }

    fn read_one(&mut self, number: u32) -> Result<(), Failed> {
        let length = if self.below(2) == 0 {
            self.dataset.get_into(number, &mut self.buffer)?
        } else {
            self.dataset.get_into(&self.snapshot.path(number)?, &mut self.buffer)?
        };
        self.reads += 1;
        self.is_right(number, self.buffer.get(..length).unwrap_or_default())
    }

    fn read_batch(&mut self, numbers: &[u32]) -> Result<(), Failed> {
        let places = self.dataset.get_many_into(numbers, &mut self.buffer)?;
        self.reads += numbers.len() as u64;
        let mut read = numbers.iter().zip(places);
        read.try_for_each(|(number, place)| {
            self.is_right(*number, self.buffer.get(place).unwrap_or_default())
        })
    }

    fn view_batch(&mut self, numbers: &[u32]) -> Result<Vec<(u32, View)>, Failed> {
        let views = self.dataset.view_many(numbers)?;
        self.reads += numbers.len() as u64;
        let views: Vec<_> = numbers.iter().copied().zip(views).collect();
        views.iter().try_for_each(|(number, view)| self.is_right(*number, view))?;
        Ok(views)
    }

    /// Checks all kept views.
    fn look_again(&self) -> Result<(), Failed> {
        self.kept.iter().try_for_each(|(number, view)| self.is_right(*number, view))
    }

    fn read_all(&mut self) -> Result<String, Failed> {
        let numbers: Vec<u32> = (0..self.snapshot.files()).collect();
        let before = self.reads;
        for (turn, batch) in numbers.chunks(BATCH).enumerate() {
            match turn % 3 {
                0 => self.read_batch(batch)?,
                1 => drop(self.view_batch(batch)?),
                _ => batch.iter().try_for_each(|number| self.read_one(*number))?,
            }
        }
        Ok(format!("{} read", self.reads - before))
    }

    fn read_epoch(&mut self, epoch: u64) -> Result<String, Failed> {
        let epoch = self.dataset.shuffle(ShuffleOptions::new(1, epoch, GROUP))?;
        let mut read = 0;
        while let Some(file) = epoch.next()? {
            self.is_right(file.number, &file.bytes?)?;
            read += 1;
        }
        Ok(format!("{read} read"))
    }

    fn keep(&mut self, count: u32) -> Result<String, Failed> {
        let files = self.snapshot.files();
        let numbers: Vec<u32> = (0..count).map(|turn| files / count * turn).collect();
        let views = self.view_batch(&numbers)?;
        self.kept.extend(views);
        Ok(format!("{} kept", self.kept.len()))
    }

    fn mix(&mut self) -> Result<String, Failed> {
        while !is_input_there()? {
            if self.below(20) == 0 {
                self.fork()?;
            }
            self.step()?;
        }
        self.look_again()?;
        self.kept.clear();
        Ok(format!("{} reads, {} forks", self.reads, self.forks))
    }

    fn step(&mut self) -> Result<(), Failed> {
        let some: Vec<u32> = (0..self.below(BATCH as u64)).map(|_| self.any()).collect();
        match self.below(6) {
            0 => self.read_batch(&some),
            1 => {
                let views =
                    self.view_batch(some.get(..some.len().min(KEPT)).unwrap_or_default())?;
                self.kept.extend(views);
                self.look_again()?;
                while self.kept.len() > KEPT {
                    self.kept.pop_front();
                }
                Ok(())
            }
            2 => {
                self.look_again()?;
                let rest = self.below(KEPT as u64) as usize;
                self.kept.truncate(rest);
                Ok(())
            }
            3 => self.read_on(),
            _ => self.read_one(self.any()),
        }
    }

    /// Reads some files of an epoch.
    fn read_on(&mut self) -> Result<(), Failed> {
        let epoch = match self.epoch.take() {
            Some(epoch) => epoch,
            None => self.dataset.shuffle(ShuffleOptions::new(1, self.below(4), GROUP))?,
        };
        for _ in 0..BATCH {
            let Some(file) = epoch.next()? else { return Ok(()) };
            self.reads += 1;
            self.is_right(file.number, &file.bytes?)?;
        }
        self.epoch = Some(epoch);
        Ok(())
    }

    /// Lets a child read, with inherited views, while the process reads on.
    fn fork(&mut self) -> Result<(), Failed> {
        let (drops_views, seed) = (self.below(2) == 0, self.random.u64());
        #[expect(unsafe_code, reason = "there is no safe way to fork")]
        // SAFETY: the process has no thread with a lock that the child needs: the library and the C
        // allocator provide for a fork. The child reads, and ends without running code of the parent.
        let child = unsafe { libc::fork() };
        if child == 0 {
            self.random = SeededRandom::new(seed);
            let code = match self.be_child() {
                Ok(()) => 0,
                Err(why) => {
                    let _ = writeln!(std::io::stderr(), "a child: {why}");
                    1
                }
            };
            #[expect(unsafe_code, reason = "no code of the parent may run at the end of the child")]
            // SAFETY: the call ends the process.
            unsafe {
                libc::_exit(code)
            }
        }
        self.forks += 1;
        let child = Pid::from_raw(child).ok_or_else(std::io::Error::last_os_error)?;
        if drops_views {
            self.kept.clear();
        }
        let read = (0..20).try_for_each(|_| self.step());
        await_child(child)?;
        read
    }

    /// Reads files, and checks the inherited views in between.
    fn be_child(&mut self) -> Result<(), Failed> {
        for _ in 0..20 {
            self.look_again()?;
            self.read_one(self.any())?;
            let some: Vec<u32> = (0..4).map(|_| self.any()).collect();
            let views = self.view_batch(&some)?;
            self.look_again()?;
            drop(views);
        }
        self.read_on()?;
        self.kept.clear();
        self.read_one(self.any())
    }
}

/// Whether a line, or the end of the input, is ready.
fn is_input_there() -> Result<bool, Failed> {
    let stdin = std::io::stdin();
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    Ok(poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

fn await_child(child: Pid) -> Result<(), Failed> {
    let clock = SystemClock::new();
    let until = clock.monotonic() + CHILD_TIMEOUT;
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG)? {
            Some((_, status)) if status.exit_status() == Some(0) => return Ok(()),
            Some((_, status)) => return Err(format!("a child ended with {status:?}").into()),
            None if clock.monotonic() > until => {
                kill_process(child, Signal::KILL)?;
                waitpid(Some(child), WaitOptions::empty())?;
                return Err("a child hangs".into());
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
