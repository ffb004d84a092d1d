//! The task: the training job whose processes share a cache on each node (paper, 4.2).
//!
//! Must hold: two jobs never get the same name by accident. All environment variables of a task are
//! read here.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_128;

const NAME_MAX: usize = 128;

/// Variables in which launchers name a job, and the value that stands for no name.
const LAUNCHERS: [&str; 3] = ["SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"];
const NO_NAME: &str = "none";

/// Settings for finding the agent of the node, with the time to wait for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOptions {
    /// The name of the job: the same in all of its processes, and in no other job of this user.
    pub name: String,
    /// The folder of sockets and locks, in the place of the usual folders: `/tmp/diesel-UID`, else
    /// `diesel` in `XDG_RUNTIME_DIR`, else `diesel/run-BOOT` in the cache folder of the user.
    pub folder: Option<PathBuf>,
    /// The program of the agent; by default `dlcmd` beside the running program, else from PATH.
    pub program: Option<PathBuf>,
    /// Extra arguments of `dlcmd agent run` for a new agent.
    pub arguments: Vec<String>,
    /// How long a read waits for the agent before it goes to the servers.
    pub patience: Duration,
}

impl TaskOptions {
    /// A job by name: at most 128 of the characters `A-Z a-z 0-9 . _ : -`; none for an invalid
    /// name.
    pub fn named(name: &str) -> Option<Self> {
        is_legal(name).then(|| Self {
            name: name.to_owned(),
            folder: std::env::var_os("DIESEL_RUNTIME_DIR").map(PathBuf::from),
            program: agent_of_environment(),
            arguments: memory_of_environment(),
            patience: Duration::from_secs(5),
        })
    }

    /// The program `dlcmd`: from the task, else beside the running program, else from PATH.
    pub(crate) fn program_of(task: Option<&Self>) -> PathBuf {
        let named = match task {
            Some(task) => task.program.clone(),
            None => agent_of_environment(),
        };
        let beside = || {
            let beside = std::env::current_exe().ok()?.with_file_name("dlcmd");
            fs::File::open(&beside).is_ok().then_some(beside)
        };
        named.or_else(beside).unwrap_or_else(|| PathBuf::from("dlcmd"))
    }

    /// The folders for sockets and locks, the preferred folder first.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        if let Some(folder) = &self.folder {
            return vec![folder.clone()];
        }
        let below = |variable, name| {
            let folder = std::env::var_os(variable).map(PathBuf::from);
            Some(folder.filter(|folder| folder.is_absolute())?.join(name))
        };
        let user = rustix::process::geteuid().as_raw();
        // Machines may share the home of a user.
        let boot = boot().unwrap_or_default();
        let name = format!("diesel/run-{}", boot.get(..8).unwrap_or_default());
        let cache = below("XDG_CACHE_HOME", "").or_else(|| below("HOME", ".cache"));
        let cache = cache.map(|cache| cache.join(name));
        let usual = Some(PathBuf::from(format!("/tmp/diesel-{user}")));
        [usual, below("XDG_RUNTIME_DIR", "diesel"), cache].into_iter().flatten().collect()
    }

    /// The job of the current process: `DIESEL_TASK`, else the launcher's name for the job
    /// (`SLURM_JOB_ID`, `TORCHELASTIC_RUN_ID` unless `none`, `PMIX_NAMESPACE`). Without these, the
    /// session of the terminal or service, on the local machine alone.
    pub fn of_process() -> Option<Self> {
        if let Ok(name) = std::env::var("DIESEL_TASK") {
            return Self::named(&name);
        }
        let launched = LAUNCHERS.iter().find_map(|variable| {
            let value = std::env::var(variable).ok()?;
            let is_name = !value.is_empty() && value != NO_NAME;
            is_name.then(|| {
                let name = format!("{variable}:{value}");
                // Launchers use longer names and other characters.
                let hashed = || format!("{variable}:{:032x}", xxh3_128(value.as_bytes()));
                if is_legal(&name) { name } else { hashed() }
            })
        });
        Self::named(&launched.or_else(session)?)
    }
}

fn is_legal(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_legal)
}

fn agent_of_environment() -> Option<PathBuf> {
    std::env::var_os("DIESEL_AGENT").map(PathBuf::from)
}

/// The value of `DIESEL_AGENT_MEMORY`, as arguments of the agent.
fn memory_of_environment() -> Vec<String> {
    let memory = std::env::var("DIESEL_AGENT_MEMORY").ok();
    memory.map(|memory| vec!["--memory".to_owned(), memory]).unwrap_or_default()
}

/// The session of the process: boot, namespace of process ids, leader, and start time of the
/// leader.
///
/// In a container the leader may be outside of the namespace: the container's first process takes
/// its place.
fn session() -> Option<String> {
    let boot = boot()?;
    let space = fs::read_link("/proc/self/ns/pid").ok()?;
    let space: String = space.to_str()?.chars().filter(char::is_ascii_digit).collect();
    // `getsid` of rustix treats the 0 of an unseen leader as impossible.
    let leader = match stat_word("self", STAT_SESSION)?.as_str() {
        "0" => "1".to_owned(),
        leader => leader.to_owned(),
    };
    // The kernel keeps the number of a leader for the whole session, also after the leader has
    // ended.
    let start = stat_word(&leader, STAT_START).unwrap_or_else(|| "0".to_owned());
    Some(format!("session:{boot}:{space}:{leader}:{start}"))
}

/// The id of the machine's current run.
fn boot() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_owned())
}

/// Positions of words in `/proc/PID/stat` behind the program name (proc_pid_stat(5), from 0).
const STAT_SESSION: usize = 3;
const STAT_START: usize = 19;

fn stat_word(process: &str, place: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program name, in brackets, may hold anything.
    let (_, words) = stat.rsplit_once(')')?;
    words.split_whitespace().nth(place).map(str::to_owned)
}
