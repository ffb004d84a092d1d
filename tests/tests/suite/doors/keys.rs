//! Users with keys and roles, through the programs.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use dl_tests::program::{Ended, Server, dlcmd, run, server_command};
use dl_tests::{folder, soon};

use super::UsersFile;

struct Scene {
    folder: tempfile::TempDir,
    users: UsersFile,
    server: Server,
}

impl Scene {
    /// Two datasets: `apples`, readable for `ann` and writable for `bob`, and `bananas`, invisible
    /// for both.
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let users = UsersFile::new(folder.path());
        users.add("root", &["admin:*"])?;
        users.add("ann", &["read:a*"])?;
        users.add("bob", &["write:a*"])?;
        let server =
            Server::start_with(&folder.path().join("data"), "127.0.0.1:0", &users.flags())?;
        let scene = Self { folder, users, server };
        folder::write(scene.folder.path(), "src/a", "a file")?;
        for dataset in ["dl://apples", "dl://bananas"] {
            scene.as_user("root", &["put", &scene.src(), dataset])?.code(0)?;
        }
        Ok(scene)
    }

    fn src(&self) -> String {
        self.folder.path().join("src").to_string_lossy().into_owned()
    }

    /// Waits until a request of a user with this key has an exit code.
    fn becomes(&self, user: &str, key: &str, code: i32) -> Result<()> {
        soon(format_args!("{user} gets {code}"), || {
            let mut command = self.server.dlcmd()?;
            command.args(["--user", user, "cat", "dl://apples/a"]).env("DIESEL_KEY", key.trim());
            Ok(run(&mut command)?.code == code)
        })
    }

    fn as_user(&self, user: &str, arguments: &[&str]) -> Result<Ended> {
        let mut command = self.server.dlcmd()?;
        command.args(["--user", user, "--key-file"]).arg(self.users.key_file(user));
        run(command.args(arguments))
    }
}

/// Keeps S-30.
#[test]
fn each_role_allows_exactly_its_methods() -> Result<()> {
    let scene = Scene::new()?;
    let src = scene.src();
    for (user, arguments, code, told) in [
        ("ann", &["cat", "dl://apples/a"][..], 0, ""),
        ("ann", &["ls", "-R", "dl://apples"], 0, ""),
        ("ann", &["put", &src, "dl://apples/x"], 1, "ann may not: that takes the role write"),
        ("ann", &["rm", "dl://apples/a"], 1, "role write"),
        ("ann", &["put", &src, "dl://avocados"], 1, "role write"),
        ("bob", &["put", &src, "dl://apples/more"], 0, ""),
        ("bob", &["put", &src, "dl://avocados"], 0, ""),
        ("bob", &["put", &src, "dl://cherries"], 1, "role write"),
        ("bob", &["rm", "dl://apples/more/a"], 0, ""),
        ("bob", &["delete-dataset", "dl://avocados"], 1, "role admin"),
        ("bob", &["recover", "dl://apples"], 1, "role admin"),
        ("bob", &["recover", "--all"], 1, "role admin on all datasets"),
        ("ann", &["cat", "dl://bananas/a"], 3, "there is none of that name"),
        ("ann", &["delete-dataset", "dl://bananas"], 3, "there is none of that name"),
        ("ann", &["cat", "dl://bapples/a"], 3, "did you mean apples?"),
        ("root", &["recover", "--all"], 0, ""),
        ("root", &["delete-dataset", "dl://bananas"], 0, ""),
    ] {
        let ended = scene.as_user(user, arguments)?;
        ensure!(ended.code == code, "{user} {arguments:?}: {} {}", ended.code, ended.stderr);
        ensure!(ended.stderr.contains(told), "{user} {arguments:?}: {}", ended.stderr);
        ensure!(user == "root" || !ended.stderr.contains("mean bananas"), "{}", ended.stderr);
    }
    for (user, names) in [("ann", "apples\navocados\n"), ("root", "apples\navocados\n")] {
        ensure!(scene.as_user(user, &["datasets"])?.code(0)?.text() == names, "{user}");
    }
    Ok(())
}

/// Keeps S-30.
#[test]
fn wrong_or_missing_keys_are_refused_and_not_shown() -> Result<()> {
    let scene = Scene::new()?;
    let key = std::fs::read_to_string(scene.users.key_file("ann"))?;
    let key = key.trim().to_owned();
    let mut texts = String::new();
    let wrong = "0123456789abcdef".repeat(4);
    let mut answers = Vec::new();
    for (user, key) in [("ann", wrong.as_str()), ("nobody", &wrong), (&key, &wrong), ("ann", "")] {
        let mut command = scene.server.dlcmd()?;
        command.args(["--user", user, "ls", "dl://apples"]).env("DIESEL_KEY", key);
        let ended = run(&mut command)?.code(1)?;
        ensure!(ended.stderr.contains("the user or the key is wrong"), "{}", ended.stderr);
        answers.push(ended.stderr.replace(user, "USER"));
        texts += &ended.stderr;
    }
    ensure!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let none = run(scene.server.dlcmd()?.args(["ls", "dl://apples"]))?.code(1)?;
    ensure!(none.stderr.contains("--user and --key-file"), "{}", none.stderr);
    let mut endless = scene.server.dlcmd()?;
    endless.args(["--user", "ann", "--key-file", "/dev/zero", "ls", "dl://apples"]);
    let endless = run(&mut endless)?.code(1)?;
    ensure!(endless.stderr.contains("that is no key"), "{}", endless.stderr);
    let good = scene.as_user("ann", &["--json", "stat", "dl://apples"])?.code(0)?;
    texts += &(good.text() + &good.stderr + &none.stderr + &scene.server.stop()?);
    ensure!(!texts.contains(&key) && !texts.contains(&wrong), "a key is in: {texts}");
    Ok(())
}

/// Keeps S-30.
#[test]
fn changes_of_users_count_in_seconds_unless_the_file_is_broken() -> Result<()> {
    let scene = Scene::new()?;
    let file = scene.users.path.clone();
    let ann = std::fs::read_to_string(scene.users.key_file("ann"))?;
    let eve = scene.users.add("eve", &["read:apples"])?;
    scene.becomes("eve", &eve, 0)?;
    scene.users.remove("ann")?;
    scene.becomes("ann", &ann, 1)?;
    let good = std::fs::read(&file)?;
    std::fs::write(&file, "no users file\n")?;
    std::thread::sleep(std::time::Duration::from_secs(6));
    scene.as_user("eve", &["cat", "dl://apples/a"])?.code(0)?;
    std::fs::write(&file, good)?;
    scene.users.remove("eve")?;
    scene.becomes("eve", &eve, 1)?;
    let mode = std::fs::metadata(&file)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let listed = run(dlcmd()?.args(["user", "list", "--users"]).arg(&file))?.code(0)?.text();
    ensure!(listed == "bob write:a*\nroot admin:*\n", "{listed}");
    let etcd = "etcd://u:TOPSECRET@127.0.0.1:1/k";
    let told = run(dlcmd()?.args(["user", "list", "--users", etcd]))?.code(2)?.stderr;
    ensure!(told.contains("etcdctl put") && !told.contains("TOPSECRET"), "{told}");
    let again = run(dlcmd()?.args(["user", "remove", "eve", "--users"]).arg(&file))?.code(3)?;
    ensure!(again.stderr.contains("there is no user eve"), "{}", again.stderr);
    let log = scene.server.stop()?;
    ensure!(log.contains("the users can't be used") && log.contains("line 1"), "{log}");
    Ok(())
}

/// Keeps S-30 and S-33: a key is replaced while its user works.
#[test]
fn a_user_has_two_keys_for_as_long_as_a_rotation_takes() -> Result<()> {
    let scene = Scene::new()?;
    let user = |arguments: &[&str]| {
        run(dlcmd()?.args(["user", "--users"]).arg(&scene.users.path).args(arguments))
    };
    let old = std::fs::read_to_string(scene.users.key_file("ann"))?;
    let becomes = |key: &str, code: i32| scene.becomes("ann", key, code);
    let second = user(&["rekey", "ann", "--keep-old"])?.code(0)?.text();
    becomes(&second, 0)?;
    becomes(&old, 0)?;
    let listed = user(&["list"])?.code(0)?.text();
    ensure!(listed.starts_with("ann read:a* (and an old key)\n"), "{listed}");
    let third = user(&["rekey", "ann", "--keep-old"])?.code(1)?;
    ensure!(third.stderr.contains("drop-old") && third.stdout.is_empty(), "{third:?}");
    user(&["drop-old", "ann"])?.code(0)?;
    becomes(&old, 1)?;
    becomes(&second, 0)?;
    user(&["drop-old", "ann"])?.code(3)?;
    let last = user(&["rekey", "ann"])?.code(0)?.text();
    becomes(&second, 1)?;
    becomes(&last, 0)?;
    user(&["rekey", "nobody"])?.code(3)?;
    Ok(())
}

#[test]
fn an_unprinted_key_is_not_registered() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let users = UsersFile::new(folder.path());
    users.add("ann", &["read:*"])?;
    let before = std::fs::read_to_string(&users.path)?;
    for arguments in [&["add", "bob", "--role", "read:*"][..], &["rekey", "ann"]] {
        let mut command = dlcmd()?;
        command.args(["user", "--users"]).arg(&users.path).args(arguments);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
        let ended = command.stdout(full).output()?;
        let told = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.code() == Some(1) && told.contains("No space left"), "{told}");
        ensure!(std::fs::read_to_string(&users.path)? == before, "{arguments:?} counts");
    }
    Ok(())
}

/// Keeps S-12.
#[test]
fn an_open_server_or_a_missing_users_file_does_not_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let start = |flags: &[&str]| {
        run(server_command()?.args(flags).arg("--data").arg(folder.path().join("data")))
    };
    let open = start(&["--listen", "0.0.0.0:0"])?.code(2)?.stderr;
    ensure!(open.contains("--users") && open.contains("--without-keys"), "{open}");
    let missing = folder.path().join("none").to_string_lossy().into_owned();
    let missing = start(&["--listen", "127.0.0.1:0", "--users", &missing])?.code(2)?.stderr;
    ensure!(missing.contains("read the users") && missing.contains("none"), "{missing}");
    Ok(())
}

/// Keeps S-30 and S-67.
#[test]
fn a_key_leaves_a_machine_unencrypted_only_on_request() -> Result<()> {
    let ask = |flags: &[&str]| {
        let mut command = dlcmd()?;
        command.env("DIESEL_KEY", "sesame").args(["--user", "ann", "--server", "192.0.2.1:1"]);
        run(command.args(flags).arg("datasets"))
    };
    let refused = ask(&[])?.code(2)?.stderr;
    ensure!(refused.contains("https://192.0.2.1:1") && !refused.contains("sesame"), "{refused}");
    ask(&["--plain-text-key"])?.code(5)?;
    Ok(())
}
