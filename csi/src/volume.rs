//! The attributes of a volume, and the command line of its mount.
//!
//! Must hold: equal attributes and secrets share a mount, others never. An unknown attribute is
//! refused.

use std::collections::BTreeMap;
use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};
use dl_format::{DatasetName, DirPath, TaskName, Version};

use crate::messages::{CA_PATH, CA_TEXT, CACHE, Order};

/// Attributes that Kubernetes adds for the driver.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

/// The attributes of a volume. The variables of `dlcmd` are in the second column.
const ATTRIBUTES: [&str; 8] =
    ["dataset", "folder", "version", "follow", "server", "task", "memory", "timeout"];

/// Most bytes of a secret, which has to fit into a message.
const SECRET_BYTES_MAX: usize = 64 << 10;

const SECRETS: [&str; 3] = ["user", "key", "ca.pem"];

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    /// `dl://DATASET[/FOLDER]`.
    pub(crate) source: String,
    /// The name of the mount that this volume shares with equal ones.
    pub(crate) session: String,
    flags: Vec<String>,
    environment: BTreeMap<String, String>,
}

impl Volume {
    /// Understands the attributes; the error names the first wrong one.
    pub(crate) fn new(
        attributes: &BTreeMap<String, String>,
        secrets: &BTreeMap<String, String>,
        servers: Option<&str>,
    ) -> Result<Self, String> {
        let given = attributes.iter().filter(|(name, _)| !name.starts_with(OF_KUBERNETES));
        let attributes: BTreeMap<&str, &str> =
            given.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if let Some(name) = attributes.keys().find(|name| !ATTRIBUTES.contains(name)) {
            return Err(format!("unknown attribute {name:?}; there are {}", ATTRIBUTES.join(", ")));
        }
        if let Some(name) = secrets.keys().find(|name| !SECRETS.contains(&name.as_str())) {
            return Err(format!("unknown secret {name:?}; there are {}", SECRETS.join(", ")));
        }
        let named = |name: &str| attributes.get(name).copied().filter(|value| !value.is_empty());
        let dataset = named("dataset").ok_or("the attribute dataset is missing")?;
        let dataset = DatasetName::new(dataset.to_owned()).map_err(wrong("dataset"))?;
        let folder = named("folder").unwrap_or_default().trim_matches('/');
        DirPath::new(folder.to_owned().into_bytes()).map_err(wrong("folder"))?;
        let slash = if folder.is_empty() { "" } else { "/" };
        let mut flags = Vec::new();
        if let Some(version) = named("version") {
            version.parse::<Version>().map_err(wrong("version"))?;
            flags.push(format!("--at={version}"));
        }
        // A word alone: a comma would begin another option.
        let word = |name: &'static str| match named(name) {
            Some(text) if !text.chars().all(|letter| letter.is_ascii_alphanumeric()) => {
                Err(wrong(name)("give a number with a unit"))
            }
            text => Ok(text),
        };
        if let Some(follow) = word("follow")? {
            flags.push(format!("--follow={follow}"));
        }
        if let Some(memory) = word("memory")? {
            flags.push(format!("--memory={memory}"));
        }
        let timeout = word("timeout")?.map(|timeout| format!(",timeout={timeout}"));
        flags.push(format!("-oallow_other{}", timeout.unwrap_or_default()));
        let mut environment = BTreeMap::new();
        let mut set = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                environment.insert(name.to_owned(), value.to_owned());
            }
        };
        if let Some(task) = named("task") {
            task.parse::<TaskName>().map_err(wrong("task"))?;
            set("DIESEL_TASK", Some(task));
        }
        set("DIESEL_SERVER", named("server").or(servers));
        let secret = |name: &str| secrets.get(name).map(|value| value.trim());
        set("DIESEL_USER", secret("user"));
        set("DIESEL_KEY", secret("key"));
        let ca = secrets.get("ca.pem").map(String::as_str);
        let long = secrets.iter().find(|(_, value)| value.len() > SECRET_BYTES_MAX);
        if let Some((name, _)) = long {
            return Err(format!("the secret {name} has more than {SECRET_BYTES_MAX} bytes"));
        }
        set(CA_TEXT, ca);
        // Volumes share no cache of names unless they trust the same servers with the same key.
        let trusted = hash(&format!("{environment:?}"));
        let folder_of = |name: &str| std::env::temp_dir().join(format!("{name}-{trusted}"));
        let cache = folder_of("diesel-cache").display().to_string();
        environment.insert(CACHE.to_owned(), cache);
        if ca.is_some() {
            let path = folder_of("diesel-ca").with_extension("pem").display().to_string();
            environment.insert(CA_PATH.to_owned(), path);
        }
        let source = format!("dl://{dataset}{slash}{folder}");
        let session = hash(&format!("{source:?}{flags:?}{environment:?}"));
        Ok(Self { source, session, flags, environment })
    }

    /// The command of the mount's holder, with the descriptor of its connection.
    pub(crate) fn order(&self, descriptor: i32) -> Order {
        let place = format!("/dev/fd/{descriptor}");
        let words = ["mount", "--role", "hold"].map(str::to_owned).into_iter();
        let words = words.chain(self.flags.iter().cloned());
        let words = words.chain(["--".to_owned(), self.source.clone(), place]);
        Order {
            arguments: words.map(String::into_bytes).collect(),
            environment: self.environment.clone(),
        }
    }
}

/// The first half of a SHA-256, in hexadecimal digits.
fn hash(text: &str) -> String {
    let bytes = digest(&SHA256, text.as_bytes());
    bytes.as_ref().iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn wrong<E: std::fmt::Display>(name: &'static str) -> impl Fn(E) -> String {
    move |why| format!("the attribute {name} is wrong: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn volume(attributes: &[(&str, &str)], secrets: &[(&str, &str)]) -> Result<Volume, String> {
        Volume::new(&map(attributes), &map(secrets), Some("diesel:7420"))
    }

    #[test]
    fn equal_volumes_share_a_mount_and_others_do_not() {
        let plain = volume(&[("dataset", "pets")], &[]).unwrap();
        let pod = ("csi.storage.k8s.io/pod.name", "a");
        assert_eq!(volume(&[("dataset", "pets"), pod], &[]).unwrap(), plain);
        let others: [(&[_], &[_]); 4] = [
            (&[("dataset", "cars")], &[]),
            (&[("dataset", "pets"), ("folder", "train")], &[]),
            (&[("dataset", "pets"), ("memory", "1GiB")], &[]),
            (&[("dataset", "pets")], &[("key", "secret")]),
        ];
        for (attributes, secrets) in others {
            assert_ne!(volume(attributes, secrets).unwrap().session, plain.session);
        }
        let order = volume(&[("dataset", "pets"), ("folder", "/train/")], &[]).unwrap().order(7);
        let words: Vec<_> =
            order.arguments.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert_eq!(words.join(" "), "mount --role hold -oallow_other -- dl://pets/train /dev/fd/7");
        assert_eq!(order.environment["DIESEL_SERVER"], "diesel:7420");
    }

    #[test]
    fn wrong_attributes_are_refused_by_name() {
        let cases: [(&[_], &[_], &str); 8] = [
            (&[("dataset", "a"), ("timeout", "25s,keyfile=/x")], &[], "attribute timeout"),
            (&[("dataset", "a"), ("memory", "1GiB --x")], &[], "attribute memory"),
            (&[], &[], "dataset is missing"),
            (&[("dataset", "a b")], &[], "attribute dataset"),
            (&[("dataset", "a"), ("folder", "../x")], &[], "attribute folder"),
            (&[("dataset", "a"), ("version", "x")], &[], "attribute version"),
            (&[("dataset", "a"), ("datset", "x")], &[], "\"datset\""),
            (&[("dataset", "a")], &[("password", "x")], "\"password\""),
        ];
        for (attributes, secrets, named) in cases {
            let error = volume(attributes, secrets).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
