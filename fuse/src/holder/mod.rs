//! The holder of a mount: keeps the connection with the kernel, and starts the next server when one
//! ends.
//!
//! Must hold: a mount ends when its holder is told so, or by an unmount, never by the end of a
//! server. All servers of a mount serve the versions that the kernel knows. Nothing stays after the
//! end: no mount, no socket, no process.

mod deny;
mod init;
mod server;
mod upgrade;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use dl_node::{Socket, accept, bind_at};
use dl_runtime::since_boot;
use libdiesel::agent::runtime_folder;

use crate::channel::Channel;
use crate::messages::{Answer, Features, FromServer, Question, Report, Shown, ToServer, ids};
use crate::mounting::{Mounted, Place, mount_at, read_ahead, unmount_at};
use crate::server::Counted;
use crate::source::Refused;
use crate::status::{MountStatus, socket_name};
use deny::Denial;
pub(crate) use init::greet;
use server::ServerProcess;

/// The first pause after a failed server, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A server that lived for a shorter time has not served.
const SERVED: Duration = Duration::from_millis(100);

/// Time without a server after which requests get an error.
const DENY_AFTER: Duration = Duration::from_secs(30);

/// The same for servers in a container of their own, which may be replaced.
const DENY_AFTER_ELSEWHERE: Duration = Duration::from_secs(300);

/// Interval between two answers during that.
const DENY_INTERVAL: Duration = Duration::from_millis(100);

/// Time for an answer of the server, and for a tool.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Versions of a mount: the shown version, and the version before for open files.
const VERSIONS_MAX: usize = 2;

/// Time for the question of a tool.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(100);

/// The settings of a mount.
pub struct Mount {
    /// The place.
    pub place: Place,
    /// Threads of a server.
    pub threads: NonZeroUsize,
    /// The command that runs a server.
    pub server: Box<dyn Fn() -> Command>,
    /// Runs the next program in this process, with a text for its `legacy`; returns after a failure.
    pub upgrade: Box<dyn Fn(&str) -> io::Error>,
    /// The text of the program before this one, for a mount that is there already.
    pub legacy: Option<String>,
    /// Servers run in a container of their own, which may be away for minutes, and can't open /dev/fuse.
    pub is_elsewhere: bool,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").field("place", &self.place).finish_non_exhaustive()
    }
}

/// What happens to a holder.
#[derive(Debug)]
enum Event {
    /// A server, by its number, has ended; whether because the mount has.
    Ended {
        server: u64,
        is_unmounted: bool,
    },
    Said {
        server: u64,
        message: FromServer,
    },
    Asked(Socket),
    /// The end was requested.
    Stop,
    /// The next program was requested.
    Upgrade,
}

/// A request to end the mount, or to go on with the next program.
#[derive(Debug, Clone)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// Ends the mount.
    pub fn stop(&self) {
        // A missing holder has ended already.
        let _ = self.0.send(Event::Stop);
    }

    /// Lets the next program hold the mount.
    pub fn upgrade(&self) {
        let _ = self.0.send(Event::Upgrade);
    }
}

/// A mount in progress.
struct Holder<'a> {
    mount: Mount,
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// Events that came during a question, before those of `events`.
    later: VecDeque<Event>,
    report: &'a dyn Fn(Report) -> bool,
    server: Option<ServerProcess>,
    /// The number of servers so far.
    starts: u64,
    /// The shown version and the version before; none before the first server has opened the dataset.
    versions: Vec<Shown>,
    task: String,
    connected: Option<Connected>,
    /// The end of the pause before the next server, since boot.
    next_start: Option<Duration>,
    pause: Duration,
    /// The time of the last handover to the running server, since boot.
    served: Option<Duration>,
    /// The time since when no server has answered for a while, since boot.
    unserved: Option<Duration>,
    /// The time of the next refusals, since boot.
    next_denial: Duration,
    problem: Option<String>,
    denial: Option<Denial>,
    /// Closed at the end.
    waiting: Vec<Socket>,
    /// Tools that wait for the newest version.
    refreshing: VecDeque<Socket>,
}

/// The connection with the kernel.
#[derive(Debug)]
struct Connected {
    channels: Vec<Channel>,
    features: Features,
    mounted: Option<Mounted>,
    /// Removes the socket for tools at its end.
    _listener: Option<ToolSocket>,
    since: Duration,
}

/// Mounts, and keeps the mount until its end. `prepare` gets the means to end the mount early.
/// `report` hears of the state, and gives false when nobody waits for the mount any more.
///
/// # Errors
/// The reason why there is no mount.
pub fn hold(
    mount: Mount,
    prepare: impl FnOnce(Stopper),
    report: &dyn Fn(Report) -> bool,
) -> Result<(), Refused> {
    let (sender, events) = channel();
    prepare(Stopper(sender.clone()));
    let mut holder = Holder {
        mount,
        events,
        sender,
        later: VecDeque::new(),
        report,
        server: None,
        starts: 0,
        versions: Vec::new(),
        task: String::new(),
        connected: None,
        next_start: None,
        pause: PAUSE,
        served: None,
        unserved: None,
        next_denial: Duration::ZERO,
        problem: None,
        denial: None,
        waiting: Vec::new(),
        refreshing: VecDeque::new(),
    };
    if let Some(legacy) = holder.mount.legacy.take() {
        holder.take_over(&legacy)?;
    } else {
        holder.start_server().map_err(|why| local(&why))?;
    }
    let ended = holder.run();
    holder.end();
    ended
}

fn local(why: &io::Error) -> Refused {
    Refused { exit: 1, why: why.to_string() }
}

impl Holder<'_> {
    fn run(&mut self) -> Result<(), Refused> {
        loop {
            match self.next_event() {
                Some(Event::Stop) => return Ok(()),
                Some(Event::Upgrade) => self.upgrade(),
                Some(Event::Asked(socket)) => self.answer(socket),
                Some(Event::Said { server, message }) => {
                    if self.is_current(server) {
                        self.hear(message)?;
                    }
                }
                Some(Event::Ended { server, is_unmounted }) if self.is_current(server) => {
                    if is_unmounted && self.connected.is_some() {
                        return Ok(());
                    }
                    self.server = None;
                    self.lose_server()?;
                }
                Some(Event::Ended { .. }) => {}
                None => self.pass_time(),
            }
        }
    }

    fn is_current(&self, server: u64) -> bool {
        self.server.as_ref().is_some_and(|running| running.number == server)
    }

    /// The next event; none when the next start or denial is due.
    fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.later.pop_front() {
            return Some(event);
        }
        let now = since_boot();
        let due = self.next_start.into_iter().chain(self.denial_time()).min();
        match due.map(|at| at.saturating_sub(now)) {
            None => self.events.recv().ok(),
            Some(left) => self.events.recv_timeout(left).ok(),
        }
    }

    /// The time of the next refusals; none while a server answers.
    fn denial_time(&self) -> Option<Duration> {
        let since = self.unserved.filter(|_| self.served.is_none())?;
        let after = if self.mount.is_elsewhere { DENY_AFTER_ELSEWHERE } else { DENY_AFTER };
        Some(since.saturating_add(after).max(self.next_denial))
    }

    fn pass_time(&mut self) {
        let now = since_boot();
        if self.next_start.is_some_and(|at| now >= at) {
            self.next_start = None;
            if let Err(why) = self.start_server() {
                self.fail(why.to_string());
            }
        }
        if self.denial_time().is_some_and(|at| now >= at) {
            self.next_denial = now.saturating_add(DENY_INTERVAL);
            if let Err(why) = self.deny() {
                tracing::warn!(%why, "refuse requests without a server");
            }
        }
    }

    /// Refuses the requests of a mount without a server.
    fn deny(&mut self) -> io::Result<()> {
        let Some(connected) = &self.connected else { return Ok(()) };
        let denial = match self.denial.take() {
            Some(denial) => denial,
            None => Denial::begin(&connected.channels, connected.features)?,
        };
        if !denial.deny_all()? {
            // A send to itself reaches the holder.
            let _ = self.sender.send(Event::Stop);
        }
        self.denial = Some(denial);
        Ok(())
    }

    fn start_server(&mut self) -> io::Result<()> {
        self.starts += 1;
        let command = (self.mount.server)();
        let server = ServerProcess::start(command, self.starts, self.sender.clone())?;
        server.socket.send(&ToServer::Open(self.versions.clone()), &[], TIMEOUT)?;
        self.server = Some(server);
        Ok(())
    }

    /// Plans the next server. Before the mount, the end of a server is the end of all.
    fn lose_server(&mut self) -> Result<(), Refused> {
        if self.connected.is_none() {
            let why = self.problem.take();
            let why = why.unwrap_or_else(|| "the server of the mount ended early".to_owned());
            return Err(Refused { exit: 1, why });
        }
        let now = since_boot();
        let served = self.served.take().map(|since| now.saturating_sub(since));
        if served.is_some_and(|served| served >= SERVED) {
            // A server that has served is replaced at once.
            (self.pause, self.unserved) = (Duration::ZERO, None);
        } else {
            self.end_refreshes("the server of the mount has ended");
        }
        self.unserved.get_or_insert(now);
        if self.next_start.is_none() {
            let pause = self.pause;
            self.pause = (2 * pause).clamp(PAUSE, PAUSE_MAX);
            self.next_start = Some(now.saturating_add(pause));
        }
        Ok(())
    }

    fn fail(&mut self, why: String) {
        tracing::warn!(why, "the mount has no server");
        self.problem = Some(why);
        if let Some(server) = self.server.take() {
            server.kill();
        }
        // Only for a mount, which is there.
        let _ = self.lose_server();
    }

    fn hear(&mut self, message: FromServer) -> Result<(), Refused> {
        match message {
            FromServer::Note(note) => _ = (self.report)(Report::Note(note)),
            FromServer::Failed { exit, why } if self.connected.is_none() => {
                return Err(Refused { exit, why });
            }
            FromServer::Failed { why, .. } => self.fail(why),
            FromServer::Opened { shown, task } => {
                self.task = task;
                let is_first = self.versions.is_empty();
                if is_first {
                    self.versions.push(shown);
                    self.connect().map_err(|why| local(&why))?;
                }
                match self.hand_over() {
                    Ok(()) if is_first => {
                        if !(self.report)(Report::Ready) {
                            let why = "the starter of the mount has gone".to_owned();
                            return Err(Refused { exit: 1, why });
                        }
                    }
                    Ok(()) => {}
                    Err(why) if is_first => return Err(local(&why)),
                    Err(why) => self.fail(why.to_string()),
                }
            }
            FromServer::Switched(shown) => {
                self.record(shown);
                let sent = self
                    .server
                    .as_ref()
                    .map(|server| server.socket.send(&ToServer::Recorded, &[], TIMEOUT));
                if let Some(Err(why)) = sent {
                    tracing::debug!(%why, "answer the server");
                }
            }
            FromServer::Refreshed(why) => {
                let answer = self.refreshed(why);
                let first = self.refreshing.pop_front();
                first.iter().for_each(|socket| tell(socket, &answer));
            }
            // The answer to a question given up.
            FromServer::Counted(_) => {}
        }
        Ok(())
    }

    /// Mounts.
    fn connect(&mut self) -> io::Result<()> {
        let first = self.mount.place.mount()?;
        let (channels, features) = self.greet(first).inspect_err(|_| {
            // A mount without its connection would be dead.
            let _ = unmount_at(&self.mount.place.dir, true);
        })?;
        let mounted = match self.mount.place.descriptor() {
            Some(_) => None,
            None => mount_at(&self.mount.place.dir)?,
        };
        mounted.iter().for_each(|mounted| read_ahead(&mounted.device));
        let listener = self.listen(mounted.as_ref());
        let since = since_boot();
        self.connected =
            Some(Connected { channels, features, mounted, _listener: listener, since });
        Ok(())
    }

    /// A socket for tools; none for a mount without a place.
    fn listen(&self, mounted: Option<&Mounted>) -> Option<ToolSocket> {
        let listening = ToolSocket::listen(&mounted?.device, self.sender.clone());
        listening.inspect_err(|why| tracing::warn!(%why, "listen for tools")).ok()
    }

    /// Answers the first request of the kernel, and makes the channels.
    fn greet(&self, first: Channel) -> io::Result<(Vec<Channel>, Features)> {
        let features = greet(&first)?;
        if self.mount.is_elsewhere && !features.resends {
            let why = "volumes need Linux 6.9: an older kernel does not repeat the requests of a \
                       killed server";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut channels = Vec::new();
        // A kernel that sends nothing again must see the channels of a dead server close.
        for _ in 1..if features.resends { self.mount.threads.get() } else { 1 } {
            channels.push(first.try_clone()?);
        }
        channels.push(first);
        Ok((channels, features))
    }

    /// Gives the channels to the server.
    fn hand_over(&mut self) -> io::Result<()> {
        let (Some(server), Some(connected)) = (&self.server, &self.connected) else {
            return Ok(());
        };
        let files: Vec<_> = connected.channels.iter().map(AsFd::as_fd).collect();
        // Reads of the denial would take requests from the server.
        self.denial = None;
        server.socket.send(&ToServer::Serve(connected.features), &files, TIMEOUT)?;
        self.refreshing.retain(|tool| !tool.is_closed());
        for _ in &self.refreshing {
            server.socket.send(&ToServer::Refresh, &[], TIMEOUT)?;
        }
        (self.served, self.problem) = (Some(since_boot()), None);
        Ok(())
    }

    /// Answers a tool.
    fn answer(&mut self, socket: Socket) {
        self.waiting.retain(|socket| !socket.is_closed());
        match socket.receive::<Question>(QUESTION_TIMEOUT) {
            Ok(Some((Question::Wait, _))) => self.waiting.push(socket),
            Ok(Some((Question::Refresh, _))) => self.refresh(socket),
            Ok(Some((Question::Status, _))) => {
                let counted = self.counted();
                let text = serde_json::to_string(&self.status(counted)).unwrap_or_default();
                if let Err(why) = socket.send(&Answer::Status(text), &[], TIMEOUT) {
                    tracing::debug!(%why, "answer a tool");
                }
            }
            Ok(None) => {}
            Err(why) => tracing::debug!(%why, "a question of a tool"),
        }
    }

    /// Asks the server, or the next one, to show the newest version; the tool gets the answer later.
    fn refresh(&mut self, socket: Socket) {
        let server = self.server.as_ref().filter(|_| self.served.is_some());
        if let Some(Err(why)) =
            server.map(|server| server.socket.send(&ToServer::Refresh, &[], TIMEOUT))
        {
            // The end of the server is an event to come.
            tracing::debug!(%why, "ask the server");
        }
        self.refreshing.push_back(socket);
    }

    fn refreshed(&self, why: Option<String>) -> Answer {
        Answer::Refreshed(why.map_or_else(|| Ok(self.version()), Err))
    }

    /// Answers all tools that wait for the newest version.
    fn end_refreshes(&mut self, why: &str) {
        let answer = self.refreshed(Some(why.to_owned()));
        self.refreshing.drain(..).for_each(|socket| tell(&socket, &answer));
    }

    /// Notes the version that a server shows.
    fn record(&mut self, shown: Shown) {
        self.versions.insert(0, shown);
        self.versions.truncate(VERSIONS_MAX);
    }

    /// The shown version.
    fn version(&self) -> String {
        let shown = self.versions.first().and_then(|shown| ids(&shown.ids));
        shown.map(|(_, version)| version.to_string()).unwrap_or_default()
    }

    /// The numbers of the server; none without an answer in time.
    fn counted(&mut self) -> Option<Counted> {
        let number = self.server.as_ref()?.number;
        self.server.as_ref()?.socket.send(&ToServer::Count, &[], TIMEOUT).ok()?;
        let until = since_boot().saturating_add(TIMEOUT);
        loop {
            let left = until.saturating_sub(since_boot());
            match self.events.recv_timeout(left) {
                Ok(Event::Said { server, message: FromServer::Counted(text) })
                    if server == number =>
                {
                    return serde_json::from_str(&text).ok();
                }
                Ok(event) => self.later.push_back(event),
                Err(_) => return None,
            }
        }
    }

    fn status(&self, counted: Option<Counted>) -> MountStatus {
        let since = self.connected.as_ref().map_or(Duration::ZERO, |connected| connected.since);
        MountStatus {
            source: self.mount.place.source.clone(),
            version: self.version(),
            task: self.task.clone(),
            holder: std::process::id(),
            server: self.server.as_ref().map(ServerProcess::pid),
            starts: self.starts,
            seconds: since_boot().saturating_sub(since).as_secs(),
            problem: self.problem.clone(),
            counted,
        }
    }

    /// Ends mount and server.
    fn end(&mut self) {
        let mounted = self.connected.take().and_then(|connected| connected.mounted);
        if let Some(mounted) = mounted {
            let is_there =
                mount_at(&mounted.dir).ok().flatten().is_some_and(|there| there == mounted);
            if is_there && let Err(why) = unmount_at(&mounted.dir, true) {
                tracing::warn!(%why, "unmount");
            }
        }
        if let Some(server) = self.server.take() {
            server.kill();
            server.wait(TIMEOUT);
        }
        // Open until the process ends, which tools wait for.
        std::mem::forget(std::mem::take(&mut self.waiting));
    }
}

fn tell(tool: &Socket, answer: &Answer) {
    if let Err(why) = tool.send(answer, &[], Duration::ZERO) {
        tracing::debug!(%why, "answer a tool");
    }
}

/// The socket for tools.
#[derive(Debug)]
struct ToolSocket(PathBuf);

impl ToolSocket {
    fn listen(device: &str, events: Sender<Event>) -> io::Result<Self> {
        let path = runtime_folder()?.join(socket_name(device));
        // Of a killed holder, whose device number is free again.
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let listener = bind_at(&path)?;
        let accept = move || {
            loop {
                match accept(&listener) {
                    Ok(socket) => {
                        if events.send(Event::Asked(socket)).is_err() {
                            break;
                        }
                    }
                    // For example when all descriptors are in use.
                    Err(why) => {
                        tracing::warn!(%why, "accept a tool");
                        thread::sleep(PAUSE_MAX);
                    }
                }
            }
        };
        thread::Builder::new().name("tools".to_owned()).spawn(accept)?;
        Ok(Self(path))
    }
}

impl Drop for ToolSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
