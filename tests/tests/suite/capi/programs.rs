//! Programs in C and C++ that use the library.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Process, Server, dlcmd, program, run};
use dl_tests::workspace;
use rustix::process::{Pid, Signal, kill_process};

use super::prefix;

/// A server, and a folder for programs and agents.
struct Scene {
    folder: tempfile::TempDir,
    server: Option<Server>,
    address: String,
}

impl Scene {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Server::start(&folder.path().join("data"))?;
        let address = server.address().to_owned();
        fs::create_dir(folder.path().join("run"))?;
        fs::set_permissions(folder.path().join("run"), fs::Permissions::from_mode(0o700))?;
        Ok(Self { folder, server: Some(server), address })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a program as a user does, by pkg-config alone; gives its path.
    fn compiled(&self, source: &Path) -> Result<PathBuf> {
        let prefix = prefix()?;
        let mut config = Command::new("pkg-config");
        config.args(["--cflags", "--libs", "diesel"]);
        config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let flags = run(&mut config)?.code(0)?.text();
        let is_c = source.extension().is_some_and(|ending| ending == "c");
        let (compiler, standard) = if is_c { ("gcc", "gnu99") } else { ("g++", "c++17") };
        let program = self.path("program");
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        command.arg("-o").arg(&program).arg(source).args(flags.split_whitespace());
        command.arg("-pthread").arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
        run(&mut command)?.code(0)?;
        Ok(program)
    }

    /// Gives a command the servers, and an agent of this scene.
    fn settings<'a>(&self, command: &'a mut Command) -> Result<&'a mut Command> {
        command.env("DIESEL_SERVER", &self.address).env("DIESEL_TASK", "job");
        command.env("DIESEL_AGENT", program("dlcmd")?).env("DIESEL_AGENT_MEMORY", "64MiB");
        command.env("DIESEL_RUNTIME_DIR", self.path("run"));
        Ok(command.env("XDG_CACHE_HOME", self.path("cache")))
    }

    fn agent(&self) -> Result<Pid> {
        let mut command = dlcmd()?;
        self.settings(&mut command)?.args(["--json", "agent", "status"]);
        let status: serde_json::Value =
            serde_json::from_str(run(&mut command)?.code(0)?.text().trim())?;
        let pid = status["pid"].as_i64().context("an agent has an id")?;
        Pid::from_raw(i32::try_from(pid)?).context("a process has an id")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Ok(agent) = self.agent() {
            let _ = kill_process(agent, Signal::KILL);
        }
    }
}

fn capi(name: &str) -> PathBuf {
    workspace::root().join("capi").join(name)
}

/// Compiles and runs a program, and the same under valgrind.
fn check(name: &str) -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.compiled(&capi(&format!("tests/{name}.c")))?;
    let mut plain = Command::new(&program);
    run(scene.settings(&mut plain)?.arg(scene.folder.path()))?.code(0)?;
    let mut checked = Command::new("valgrind");
    checked.args(["-q", "--error-exitcode=9", "--show-leak-kinds=definite"]);
    checked.arg(format!("--suppressions={}", capi("tests/valgrind.supp").display()));
    // A forked child lacks the threads that would free what is theirs.
    let leaks = if name == "fork" { "no" } else { "full" };
    checked.arg(format!("--leak-check={leaks}")).arg("--errors-for-leak-kinds=definite");
    checked.arg(&program).arg(scene.folder.path());
    run(scene.settings(&mut checked)?)?.code(0)?;
    Ok(())
}

#[test]
fn each_function_does_what_its_text_says() -> Result<()> {
    check("all")
}

#[test]
fn a_wrong_argument_is_refused_by_its_name() -> Result<()> {
    check("wrong")
}

#[test]
fn any_number_of_threads_share_a_handle_and_an_epoch() -> Result<()> {
    check("threads")
}

#[test]
fn handles_work_after_a_fork_and_bytes_outlive_their_handle() -> Result<()> {
    check("fork")
}

#[test]
fn a_program_survives_the_kill_of_its_agent_and_its_server() -> Result<()> {
    let mut scene = Scene::new()?;
    let program = scene.compiled(&capi("tests/survive.c"))?;
    let mut command = Command::new(program);
    scene.settings(&mut command)?.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command)?;
    let (mut to, from) = process.pipes().context("both are piped")?;
    let mut lines = BufReader::new(from).lines();
    let mut says = |line: &str| -> Result<()> {
        let said = lines.next().context("the program goes on")??;
        ensure!(said == line, "{said}, not {line}");
        Ok(())
    };
    says("ready")?;
    // An epoch whose agent is killed, and one whose agent and server are.
    writeln!(to)?;
    says("half")?;
    kill_process(scene.agent()?, Signal::KILL)?;
    writeln!(to)?;
    says("0 failed")?;
    writeln!(to)?;
    says("half")?;
    if let Ok(agent) = scene.agent() {
        kill_process(agent, Signal::KILL)?;
    }
    scene.server.take().context("a server runs")?.kill()?;
    writeln!(to)?;
    std::thread::sleep(Duration::from_secs(1));
    scene.server = Some(Server::start_with(&scene.path("data"), &scene.address, &[])?);
    says("0 failed")?;
    drop(to);
    ensure!(process.wait(Duration::from_secs(60))? == 0);
    Ok(())
}

#[test]
fn the_examples_put_read_go_on_and_train() -> Result<()> {
    let scene = Scene::new()?;
    let example = |source: &str, arguments: &[&str]| -> Result<String> {
        let program = scene.compiled(&capi(&format!("examples/{source}")))?;
        let mut command = Command::new(program);
        Ok(run(scene.settings(&mut command)?.args(arguments))?.code(0)?.text())
    };
    let files: Vec<String> = (0..300)
        .map(|number| {
            let path = scene.path(&format!("{number}.txt"));
            fs::write(&path, "x".repeat(number))?;
            Ok(path.to_string_lossy().into_owned())
        })
        .collect::<Result<_>>()?;
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let told = example("put.c", &[&["dl://x"], &*files].concat())?;
    ensure!(told == "300 files\n", "{told}");
    let told = example("epoch.c", &["dl://x", "1"])?;
    let (token, rest) = told.split_once('\n').context("a token comes first")?;
    ensure!(rest == "300 files, 0 unreadable, mean length 149.5\n", "{told}");
    let token = token.strip_prefix("token ").context("a token comes first")?;
    let told = example("epoch.c", &["dl://x", "0", token])?;
    ensure!(told.contains("172 files, 0 unreadable"), "{told}");

    // Ten classes of images, each with its own bright row.
    let digits = scene.path("digits");
    let dice = dl_tests::dice::Dice::new(3);
    for number in 0..1_000_usize {
        let class = number % 10;
        let mut pixels: Vec<u8> = dice.bytes(64).into_iter().map(|byte| byte / 4).collect();
        let bright = pixels.iter_mut().skip(class * 6).take(10);
        bright.for_each(|pixel| *pixel = pixel.saturating_add(180));
        let image = [b"P5\n8 8\n255\n".as_slice(), &pixels].concat();
        dl_tests::folder::write(&digits, format!("{class}/{number}.pgm"), image)?;
    }
    let mut put = dlcmd()?;
    run(scene.settings(&mut put)?.arg("put").arg(&digits).arg("dl://digits"))?.code(0)?;
    let told = example("train.cpp", &["dl://digits"])?;
    let last = told.lines().last().context("epochs are told")?;
    let right: Option<u32> = last.split(' ').nth(2).and_then(|right| right.parse().ok());
    ensure!(right.is_some_and(|right| right > 950) && last.contains("of 1000"), "{told}");
    Ok(())
}
