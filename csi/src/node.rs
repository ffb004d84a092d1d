//! The node service: publishes datasets in pods, and takes them back.
//!
//! Must hold: every call can be repeated. A failed publish leaves nothing behind. Work on different
//! sessions goes on side by side.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dl_fuse::{Place, mount_at};
use dl_node::Socket;
use dl_runtime::{blocking, locked};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

use crate::holder::MOUNT_TIMEOUT;
use crate::messages::{FromHolder, ToHolder};
use crate::mounts::{self, Answer};
use crate::pb::node_server::Node;
use crate::pb::node_service_capability::rpc::Type as Capability;
use crate::pb::node_service_capability::{Rpc, Type};
use crate::pb::volume_capability::AccessType;
use crate::pb::volume_capability::access_mode::Mode;
use crate::pb::volume_usage::Unit;
use crate::pb::{self, VolumeCapability, VolumeCondition, VolumeUsage};
use crate::sessions::{Sessions, if_there};
use crate::settings::Driver;
use crate::volume::Volume;

/// Volumes of a node, of which Kubernetes knows no bound.
const NO_BOUND: i64 = 0;

/// The node service.
#[derive(Debug, Clone)]
pub(crate) struct NodeService {
    driver: Arc<Driver>,
    sessions: Sessions,
    /// A turn for each session and target: calls for the same are one after the other.
    turns: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

impl NodeService {
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        let sessions = Sessions::new(driver.state.join("sessions"));
        Self { driver, sessions, turns: Arc::default() }
    }

    /// Forgets what is not mounted any more, as after a start of the machine. What can't be tidied up
    /// stays for later.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        for id in self.sessions.ids()? {
            if let Err(why) = self.tidy_session(&id) {
                tracing::warn!(id, %why, "tidy a session up");
            }
        }
        Ok(())
    }

    fn tidy_session(&self, id: &str) -> io::Result<()> {
        let mut session = self.sessions.read(id)?.unwrap_or_default();
        let before = session.targets.len();
        let is_there = |(_, target): &(String, PathBuf)| {
            mount_at(target).map_or(true, |there| there.is_some())
        };
        session.targets.retain(is_there);
        match session.targets.len() {
            0 => self.sessions.remove(id),
            left if left < before => self.sessions.write(id, &session),
            _ => Ok(()),
        }
    }

    /// Waits for the calls before, about a target or a session.
    async fn turn(&self, name: String) -> OwnedSemaphorePermit {
        let turn = {
            let mut turns = locked(&self.turns);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1 || turn.available_permits() == 0);
            Arc::clone(turns.entry(name).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        turn.acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Publishes a volume. Blocks.
    fn publish(&self, volume: &Volume, id: &str, target: &Path) -> Result<(), Status> {
        let failed = |what: &'static str| move |why: io::Error| internal(what, &why);
        let place = self.sessions.mount_point(&volume.session);
        if let Some(there) = mount_at(target).map_err(failed("look at the target"))? {
            // Of an earlier call, perhaps with a key or servers that changed since.
            let sessions = self.sessions.at(target).map_err(failed("find a session"))?;
            let of = (id.to_owned(), target.to_owned());
            let is_known = sessions.iter().any(|(_, session)| session.targets.contains(&of));
            match mounts::ask(target) {
                Answer::Dead => mounts::clear(target).map_err(failed("clear the target"))?,
                _ if is_known && there.source == volume.source => return Ok(()),
                _ => {
                    let why = "another volume, or this one with other attributes, is at the target";
                    return Err(Status::already_exists(why));
                }
            }
        }
        self.begin(volume, &place)?;
        let published = self.publish_mount(volume, &place, id, target);
        published.map_err(|why| {
            // The session must not keep a target that is none, nor a mount without targets.
            let left = self.unpublish(id, target).and_then(|()| self.end_unused(&volume.session));
            left.err().unwrap_or_else(|| internal("publish", &why))
        })
    }

    fn publish_mount(
        &self,
        volume: &Volume,
        place: &Path,
        id: &str,
        target: &Path,
    ) -> io::Result<()> {
        let mut session = self.sessions.read(&volume.session)?.unwrap_or_default();
        session.source.clone_from(&volume.source);
        session.targets.insert((id.to_owned(), target.to_owned()));
        self.sessions.write(&volume.session, &session)?;
        fs::create_dir_all(target)?;
        mounts::bind(place, target)
    }

    /// Ends a session that is published nowhere.
    fn end_unused(&self, id: &str) -> Result<(), Status> {
        let session = self.sessions.read(id).map_err(|why| internal("read a session", &why))?;
        if session.is_some_and(|session| !session.targets.is_empty()) {
            return Ok(());
        }
        self.sessions.remove(id).map_err(|why| internal("end a session", &why))
    }

    /// Makes the mount of a session, unless it is there and lives.
    fn begin(&self, volume: &Volume, place: &Path) -> Result<(), Status> {
        let failed = |what: &'static str| move |why: io::Error| internal(what, &why);
        if mount_at(place).map_err(failed("look at the mount"))?.is_some() {
            match mounts::ask(place) {
                Answer::Sizes(_) => return Ok(()),
                Answer::Silent => {
                    return Err(Status::unavailable(
                        "the mount of the dataset gives no answer yet",
                    ));
                }
                Answer::Dead => mounts::clear(place).map_err(failed("clear a dead mount"))?,
            }
        }
        let session = self.sessions.read(&volume.session).map_err(failed("read a session"))?;
        let session = session.unwrap_or_default();
        self.sessions.write(&volume.session, &session).map_err(failed("write a session"))?;
        let mounted = self.mount(volume, place);
        if mounted.is_err() {
            let is_published = !session.targets.is_empty();
            let cleaned = match is_published {
                true => mounts::clear(place),
                false => self.sessions.remove(&volume.session),
            };
            cleaned.map_err(failed("clean up"))?;
        }
        mounted
    }

    /// Mounts, and hands the connection with the kernel to the holder.
    fn mount(&self, volume: &Volume, place: &Path) -> Result<(), Status> {
        let away = |why: io::Error| {
            let socket = self.driver.holder.display();
            Status::unavailable(format!("the holder of mounts at {socket} is away: {why}"))
        };
        let holder = Socket::connect(&self.driver.holder).map_err(away)?;
        let mount = Place {
            dir: place.to_owned(),
            source: volume.source.clone(),
            allow_other: true,
            no_exec: false,
        };
        let descriptor = mount.connect().map_err(|why| internal("mount", &why))?;
        // The holder puts its own number in place of this one.
        let order = volume.order(0);
        holder.send(&ToHolder::Hold(order), &[descriptor.as_fd()], MOUNT_TIMEOUT).map_err(away)?;
        drop(descriptor);
        match holder.receive::<FromHolder>(MOUNT_TIMEOUT * 2).map_err(away)? {
            Some((FromHolder::Ready, _)) => Ok(()),
            Some((FromHolder::Failed { exit, why }, _)) => Err(match exit {
                2 => Status::invalid_argument(why),
                3 => Status::not_found(why),
                5 => Status::unavailable(why),
                _ => Status::internal(why),
            }),
            None => Err(away(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Takes a volume back. Blocks.
    fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        let failed = |what: &'static str| move |why: io::Error| internal(what, &why);
        mounts::clear(target).map_err(failed("unmount the target"))?;
        if_there(fs::remove_dir(target)).map_err(failed("remove the target"))?;
        for (session_id, mut session) in
            self.sessions.at(target).map_err(failed("find a session"))?
        {
            session.targets.remove(&(id.to_owned(), target.to_owned()));
            // A target has one volume, whatever its id was.
            session.targets.retain(|(_, path)| path != target);
            let left = match session.targets.is_empty() {
                true => self.sessions.remove(&session_id),
                false => self.sessions.write(&session_id, &session),
            };
            left.map_err(failed("end a session"))?;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<pb::NodePublishVolumeRequest>,
    ) -> Result<Response<pb::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = present("volume_id", request.volume_id)?;
        let target = path("target_path", request.target_path)?;
        check_capability(request.volume_capability)?;
        let attributes: BTreeMap<_, _> = request.volume_context.into_iter().collect();
        let secrets = request.secrets.into_iter().collect();
        let volume = Volume::new(&attributes, &secrets, self.driver.servers.as_deref())
            .map_err(Status::invalid_argument)?;
        let turns = [target_name(&target), volume.session.clone()];
        let turns = [self.turn(turns[0].clone()).await, self.turn(turns[1].clone()).await];
        let this = self.clone();
        let publish = move || {
            // The work goes on without its caller.
            let _turns = turns;
            this.publish(&volume, &id, &target)
        };
        blocking::run(publish).await.map_err(|why| internal("publish", &why))??;
        Ok(Response::new(pb::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<pb::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<pb::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = present("volume_id", request.volume_id)?;
        let target = path("target_path", request.target_path)?;
        let mut turns = vec![self.turn(target_name(&target)).await];
        let of = self.sessions.at(&target).map_err(|why| internal("find a session", &why))?;
        for (session, _) in of {
            turns.push(self.turn(session).await);
        }
        let this = self.clone();
        let unpublish = move || {
            let _turns = turns;
            this.unpublish(&id, &target)
        };
        blocking::run(unpublish).await.map_err(|why| internal("unpublish", &why))??;
        Ok(Response::new(pb::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<pb::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<pb::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        present("volume_id", request.volume_id)?;
        let dir = path("volume_path", request.volume_path)?;
        let mounted = mount_at(&dir).map_err(|why| internal("look at the volume", &why))?;
        if mounted.is_none() {
            return Err(Status::not_found("no dataset is mounted there"));
        }
        let answer = blocking::run(move || mounts::ask(&dir)).await;
        let answer = answer.map_err(|why| internal("ask the volume", &why))?;
        let (usage, condition) = match answer {
            Answer::Sizes(sizes) => {
                let unit = u64::try_from(sizes.f_bsize).unwrap_or(1);
                let bytes = sizes.f_blocks.saturating_mul(unit);
                let usage = [(Unit::Bytes, bytes), (Unit::Inodes, sizes.f_files)];
                let usage = usage.map(|(unit, all)| full(unit, all));
                (usage.to_vec(), VolumeCondition { abnormal: false, message: "ok".to_owned() })
            }
            Answer::Dead => (Vec::new(), abnormal("the mount is dead".to_owned())),
            Answer::Silent => (Vec::new(), abnormal("the mount gives no answer".to_owned())),
        };
        Ok(Response::new(pb::NodeGetVolumeStatsResponse {
            usage,
            volume_condition: Some(condition),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<pb::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<pb::NodeGetCapabilitiesResponse>, Status> {
        let capabilities = [Capability::GetVolumeStats, Capability::VolumeCondition];
        let capabilities = capabilities.map(|one| pb::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: one.into() })),
        });
        let capabilities = capabilities.into();
        Ok(Response::new(pb::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<pb::NodeGetInfoRequest>,
    ) -> Result<Response<pb::NodeGetInfoResponse>, Status> {
        let node_id = self.driver.node.clone();
        let max_volumes_per_node = NO_BOUND;
        Ok(Response::new(pb::NodeGetInfoResponse { node_id, max_volumes_per_node }))
    }
}

fn target_name(target: &Path) -> String {
    format!("target {}", target.display())
}

fn internal(what: &str, why: &dyn std::fmt::Display) -> Status {
    Status::internal(format!("{what}: {why}"))
}

fn abnormal(message: String) -> VolumeCondition {
    VolumeCondition { abnormal: true, message }
}

/// A volume that takes no writes is full.
fn full(unit: Unit, all: u64) -> VolumeUsage {
    let all = i64::try_from(all).unwrap_or(i64::MAX);
    VolumeUsage { available: 0, total: all, used: all, unit: unit.into() }
}

fn present(name: &str, value: String) -> Result<String, Status> {
    match value.is_empty() {
        true => Err(Status::invalid_argument(format!("{name} is missing"))),
        false => Ok(value),
    }
}

fn path(name: &str, value: String) -> Result<PathBuf, Status> {
    let path = PathBuf::from(present(name, value)?);
    let is_plain = path.is_absolute()
        && path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
    match is_plain {
        true => Ok(path),
        false => Err(Status::invalid_argument(format!("{name} is no absolute path"))),
    }
}

fn check_capability(capability: Option<VolumeCapability>) -> Result<(), Status> {
    let invalid = Status::invalid_argument;
    let capability = capability.ok_or_else(|| invalid("volume_capability is missing"))?;
    match capability.access_type {
        Some(AccessType::Mount(_)) => {}
        Some(AccessType::Block(_)) => return Err(invalid("a dataset is no block device")),
        None => return Err(invalid("the access type is missing")),
    }
    let mode = capability.access_mode.map(|mode| mode.mode());
    match mode {
        None | Some(Mode::Unknown) => Err(invalid("the access mode is missing")),
        // An inline volume comes as a writer of a single node; writes to it fail as to any read-only
        // file system.
        Some(Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
            Err(invalid("a dataset is read-only: use ReadOnlyMany"))
        }
        Some(_) => Ok(()),
    }
}
