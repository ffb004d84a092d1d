//! Reads of a task whose agent is missing, too small, silent or killed: whole chunks come from the
//! servers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::http::get;
use dl_tests::program::{Server, program, run};
use dl_tests::skip;
use libdiesel::{Client, ConnectOptions, Dataset, DatasetName, Epoch, ShuffleOptions, TaskOptions};
use rustix::process::{Signal, kill_process};

use super::{Scene, bytes_of, status_of, wait_for_end};

/// About 60 chunks of 1 MiB.
const FILES: u32 = 6_000;

/// Chunks of a group: a quarter of the dataset.
const GROUP: u32 = 24;

const TIMEOUT: Duration = Duration::from_secs(20);

impl Scene {
    /// The number of finished requests of a method of the server.
    fn requests(&self, method: &str) -> Result<u64> {
        let server = self.server.as_ref().context("a server runs")?;
        let (_, text) = get(server.http(), "/metrics")?;
        let of_method = format!("diesel_requests_total{{method=\"{method}\"");
        let lines = text.lines().filter(|line| line.starts_with(&of_method));
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        Ok(counts.sum())
    }

    /// Checks the number of requests of a read: at most `most` and a few for single files.
    fn asks_at_most(&self, most: u64, read: impl FnOnce() -> Result<()>) -> Result<()> {
        let asked =
            || Ok::<_, anyhow::Error>([self.requests("GetChunks")?, self.requests("Read")?]);
        let before = asked()?;
        read()?;
        let [chunks, files] = asked()?;
        let (chunks, files) = (chunks - before[0], files - before[1]);
        ensure!(
            chunks + files <= most + 10,
            "{chunks} for chunks and {files} for files, of {most}"
        );
        Ok(())
    }

    /// A handle of this process with an agent of `program`.
    fn open_with(&self, program: &Path, patience: Duration) -> Result<Dataset> {
        let mut task = TaskOptions::named("job").context("a name")?;
        (task.program, task.patience) = (Some(program.to_owned()), patience);
        (task.folder, task.arguments) = (Some(self.path("run")), Vec::new());
        let servers = self.address.split(',').map(str::to_owned).collect();
        let options = ConnectOptions { servers, task: Some(task), ..ConnectOptions::default() };
        Ok(Client::connect(options)?.dataset(&DatasetName::new("ds")?)?)
    }

    /// A handle without an agent: there is no program for the agent.
    fn open_without(&self) -> Result<Dataset> {
        self.open_with(&self.path("missing"), TIMEOUT)
    }
}

fn chunks_of(dataset: &Dataset) -> Result<u64> {
    Ok(dataset.snapshot().context("a snapshot")?.chunks().into())
}

fn begin(dataset: &Dataset, epoch: u64) -> Result<Epoch> {
    Ok(dataset.shuffle(ShuffleOptions::new(1, epoch, GROUP))?)
}

/// An epoch of many groups.
fn begin_long(dataset: &Dataset) -> Result<Epoch> {
    Ok(dataset.shuffle(ShuffleOptions::new(1, 0, 4))?)
}

/// Reads and checks files of an epoch, all that are left by default.
fn read(scene: &Scene, epoch: &Epoch, most: Option<u32>) -> Result<()> {
    let (mut files, left) = (0, epoch.length() - epoch.position());
    while most.is_none_or(|most| files < most)
        && let Some(file) = epoch.next()?
    {
        ensure!(file.bytes? == bytes_of(scene, &file.path)?, "{} has other bytes", file.path);
        files += 1;
    }
    ensure!(u64::from(files) == most.map_or(left, u64::from), "{files} files were read");
    Ok(())
}

/// Keeps S-80.
#[test]
fn an_epoch_without_an_agent_reads_each_chunk_once() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    let dataset = scene.open_without()?;
    let chunks = chunks_of(&dataset)?;
    for number in 0..2 {
        scene.asks_at_most(chunks, || read(&scene, &begin(&dataset, number)?, None))?;
    }
    let numbers: Vec<u32> = (0..FILES).step_by(7).collect();
    let epoch = begin(&dataset, 2)?;
    scene.asks_at_most(chunks, || {
        while let numbers = epoch.take(64)?
            && !numbers.is_empty()
        {
            ensure!(dataset.view_many(&numbers)?.len() == numbers.len(), "too few views");
        }
        Ok(())
    })?;
    drop(epoch);
    scene.asks_at_most(0, || {
        let mut buffer = vec![0; 64 << 20];
        let places = dataset.get_many_into(&numbers, &mut buffer)?;
        ensure!(places.len() == numbers.len(), "too few files");
        ensure!(dataset.view_many(&numbers)?.len() == numbers.len(), "too few views");
        Ok(())
    })
}

#[test]
fn workers_of_a_rank_and_a_resumed_epoch_read_whole_chunks() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    let dataset = scene.open_without()?;
    let chunks = chunks_of(&dataset)?;
    let workers = (0..2).map(|number| {
        let options = ShuffleOptions::new(1, 0, GROUP).of_worker(number, 2, 16);
        Ok(dataset.shuffle(options)?)
    });
    let workers = workers.collect::<Result<Vec<_>>>()?;
    scene.asks_at_most(2 * chunks, || {
        std::thread::scope(|scope| {
            let readers: Vec<_> =
                workers.iter().map(|epoch| scope.spawn(|| read(&scene, epoch, None))).collect();
            readers.into_iter().try_for_each(|reader| reader.join().expect("no panic"))
        })
    })?;
    scene.start_agent(&["--memory", "4MiB"])?;
    for dataset in [dataset, scene.open_with(&program("dlcmd")?, TIMEOUT)?] {
        let epoch = begin(&dataset, 1)?;
        read(&scene, &epoch, Some(FILES / 2))?;
        let resume = Some(epoch.token(epoch.position()));
        drop(epoch);
        let options = ShuffleOptions { resume, ..ShuffleOptions::new(1, 1, GROUP) };
        let resumed = dataset.shuffle(options)?;
        ensure!(resumed.length() == u64::from(FILES - FILES / 2), "{} files", resumed.length());
        let most = chunks / 2 + u64::from(2 * GROUP);
        scene.asks_at_most(most, || read(&scene, &resumed, None))?;
    }
    Ok(())
}

/// Keeps S-80.
#[test]
fn a_group_larger_than_memory_is_noted_once_and_read() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    for memory in ["4MiB", "12MiB"] {
        scene.start_agent(&["--memory", memory])?;
        let dataset = scene.open_with(&program("dlcmd")?, TIMEOUT)?;
        let chunks = chunks_of(&dataset)?;
        for number in 0..2 {
            // An agent asks twice for a chunk with a waiting reader.
            scene.asks_at_most(chunks + 12, || read(&scene, &begin(&dataset, number)?, None))?;
        }
        let status = scene.status()?;
        ensure!(status["chunks_kept"].as_u64() > Some(0), "memory serves no chunk: {status}");
        ensure!(status["hits"].as_u64() > Some(0), "no file came from memory: {status}");
        drop(dataset);
        let mut reading = scene.dlcmd()?;
        reading.args(["shuffle", "dl://ds", "--read", "--group-size", &GROUP.to_string()]);
        let ended = run(&mut reading)?.code(0)?;
        let expected = "does not fit into the memory of the node's agent";
        ensure!(ended.stderr.matches(expected).count() == 1, "{ended:?}");
        run(scene.dlcmd()?.args(["agent", "stop"]))?.code(0)?;
    }
    Ok(())
}

#[test]
fn a_silent_agent_costs_no_single_reads_and_serves_again_later() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    let dataset = scene.open_with(&program("dlcmd")?, Duration::from_millis(300))?;
    let chunks = chunks_of(&dataset)?;
    let agent = scene.agent()?;
    let epoch = begin_long(&dataset)?;
    read(&scene, &epoch, Some(100))?;
    kill_process(agent, Signal::STOP)?;
    let read_past = scene.asks_at_most(chunks, || read(&scene, &epoch, Some(FILES / 2)));
    kill_process(agent, Signal::CONT)?;
    read_past?;
    let hits = scene.status()?["hits"].as_u64();
    read_until_hits(&scene, &epoch, hits)
}

#[test]
fn an_agent_without_a_server_costs_few_single_reads() -> Result<()> {
    let mut scene = Scene::stamped(FILES)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    scene.kill_server()?;
    let http = ["--http", "127.0.0.1:0"];
    let server = Server::start_with(&scene.path("data"), "127.0.0.1:0", &http)?;
    scene.address = format!("{},{}", server.address(), scene.address);
    scene.server = Some(server);
    let dataset = scene.open_with(&program("dlcmd")?, Duration::from_millis(500))?;
    let chunks = chunks_of(&dataset)?;
    let epoch = begin_long(&dataset)?;
    scene.asks_at_most(chunks + 30, || read(&scene, &epoch, None))
}

/// Reads an epoch to its end, slowly until files come from the memory of the agent.
fn read_until_hits(scene: &Scene, epoch: &Epoch, before: Option<u64>) -> Result<()> {
    let hits = || status_of(scene.dlcmd()?).map(|status| status["hits"].as_u64());
    // The next agent may not run yet.
    while hits().unwrap_or(before) <= before {
        ensure!(epoch.position() + 20 < epoch.length(), "no file came from memory");
        read(scene, epoch, Some(20))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    read(scene, epoch, None)
}

#[test]
fn an_epoch_outlives_its_agent_and_uses_the_next() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    let agent_program = scene.path("agent");
    symlink(program("dlcmd")?, &agent_program)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    let dataset = scene.open_with(&agent_program, TIMEOUT)?;
    let chunks = chunks_of(&dataset)?;
    let epoch = begin_long(&dataset)?;
    read(&scene, &epoch, Some(100))?;
    fs::rename(&agent_program, scene.path("away"))?;
    let agent = scene.agent()?;
    kill_process(agent, Signal::KILL)?;
    wait_for_end(agent, TIMEOUT)?;
    scene.asks_at_most(chunks, || read(&scene, &epoch, Some(FILES / 2)))?;
    fs::rename(scene.path("away"), &agent_program)?;
    read_until_hits(&scene, &epoch, Some(0))?;
    ensure!(scene.agent()? != agent, "the same agent");
    Ok(())
}

/// A command of a task in a mount namespace in which other users may enter the usual folder.
fn with_open_folder(scene: &Scene, arguments: &str) -> Result<Command> {
    let user = rustix::process::geteuid().as_raw();
    let script = format!(
        "mkdir -p -m 700 /tmp/diesel-{user}; mount --bind \"$open\" /tmp/diesel-{user}; \
         exec \"$dlcmd\" --task job {arguments}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &script]).env_remove("DIESEL_RUNTIME_DIR");
    command.env("open", scene.path("open")).env("dlcmd", program("dlcmd")?);
    command.env("DIESEL_SERVER", &scene.address).env("XDG_CACHE_HOME", scene.path("cache"));
    command.env("XDG_RUNTIME_DIR", scene.path("xdg"));
    Ok(command)
}

#[test]
fn an_unusable_folder_is_noted_and_another_serves() -> Result<()> {
    let scene = Scene::stamped(1_000)?;
    for (name, mode) in [("open", 0o755), ("xdg", 0o700)] {
        fs::create_dir(scene.path(name))?;
        fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode))?;
    }
    let probe = run(&mut with_open_folder(&scene, "--version")?)?;
    if probe.code != 0 {
        return skip(format_args!("this machine permits no mounts: {}", probe.stderr));
    }
    let read = "--json shuffle dl://ds --read";
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let of_cache = format!("cache/diesel/run-{}", boot.get(..8).context("an id")?);
    for folder in ["xdg/diesel", &of_cache] {
        let command = |arguments| -> Result<Command> {
            let mut command = with_open_folder(&scene, arguments)?;
            if folder.starts_with("cache") {
                command.env_remove("XDG_RUNTIME_DIR");
            }
            Ok(command)
        };
        let ended = run(&mut command(read)?)?.code(0)?;
        let note = format!("in {}: /tmp/diesel-", scene.path(folder).display());
        ensure!(ended.stderr.contains(&note) && ended.stderr.contains("mode 755"), "{ended:?}");
        ensure!(ended.stderr.lines().count() == 1, "one note: {ended:?}");
        let names = fs::read_dir(scene.path(folder))?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<Result<Vec<_>>>()?;
        let is_socket = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".sock");
        ensure!(names.iter().any(is_socket), "{folder}: {names:?}");
        let status = run(&mut command("--json agent status")?)?.code(0)?;
        ensure!(status.text().contains("\"hits\":1000"), "{status:?}");
        run(&mut command("why")?)?.code(0)?;
        run(&mut command("agent stop")?)?.code(0)?;
    }
    // A folder in which others may move files serves nobody.
    fs::set_permissions(scene.path("xdg"), fs::Permissions::from_mode(0o777))?;
    let ended = run(&mut with_open_folder(&scene, read)?)?.code(0)?;
    ensure!(ended.stderr.contains("another user may change"), "{ended:?}");
    run(&mut with_open_folder(&scene, "agent stop")?)?.code(0)?;
    Ok(())
}
