//! Buckets as stores: S3 and compatible servers, Google Cloud Storage, Azure.
//!
//! Must hold: a bucket that can't be used is refused at the opening, with the remedy. A bucket whose
//! creates can replace an object is never used.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dl_runtime::{Clock, Deadline, OsRandom, Random, SystemClock, blocking};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, Error as ObjectError, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, RetryConfig,
};

use crate::endpoint::{Provider, endpoint};
use crate::http::WholeAnswers;
use crate::object::{NO_ANSWER, RemoteStore, is_missing, kind_of};
use crate::proxy::{Proxies, Through};
use crate::{Error, Kind, Prefix, Store, profile};

const ACTION: &str = "open store";

/// Most bytes between merged ranges: what a bucket sends in the time of another request.
const GAP: u64 = 512 << 10;

/// Names of probes: the prefix, which no key has, then 32 hexadecimal digits.
const PROBE: &str = ".probe-";
/// A probe of this age was left by a start that was killed.
const PROBE_LEFT: Duration = Duration::from_secs(24 * 60 * 60);
/// Old probes that a start looks at.
const PROBES_MAX: usize = 100;

/// Time of a start to reach a store that gives no HTTP answer.
const CONTACT: Duration = Duration::from_secs(2);

/// The variable of Amazon's tools that names a file with CAs.
const CA_BUNDLE: &str = "AWS_CA_BUNDLE";

/// Retries start soon, as a training job waits for each read, and end before the clients of a server do
/// (60 s). A request that took its 30 s is not sent again.
fn patience() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: 30,
        retry_timeout: Duration::from_secs(20),
    }
}

/// Connecting takes at most 5 s, a request 30 s; idle connections close before the server closes them.
fn connections() -> ClientOptions {
    ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(5))
        .with_timeout(Duration::from_secs(30))
        .with_pool_idle_timeout(Duration::from_secs(15))
}

/// A bucket and the prefix of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    provider: Provider,
    bucket: String,
    prefix: String,
}

impl Address {
    /// Parses `SCHEME://BUCKET/PREFIX`; none for another scheme, for no bucket, and for a prefix that
    /// would need escaping.
    pub(crate) fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let provider = match scheme {
            "s3" => Provider::S3,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            _ => return None,
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_bucket = !bucket.is_empty() && bucket.bytes().all(is_name);
        let is_prefix = prefix.is_empty() || Prefix::new(prefix).is_ok();
        (is_bucket && is_prefix).then(|| Self {
            provider,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }

    /// Connects with object_store's variables for the provider in `settings`, completed from Amazon's
    /// profile, and checks that the bucket can be used.
    pub(crate) async fn open(
        &self,
        settings: &[(String, String)],
    ) -> Result<Arc<dyn Store>, Error> {
        let random: Arc<dyn Random> = Arc::new(OsRandom);
        let settings = self.completed(settings.to_vec()).await?;
        let settings = settings.as_slice();
        let refused = |why: String| Error::because(Kind::Unsupported, ACTION, self, why);
        let endpoint = endpoint(self.provider, &self.bucket, settings).map_err(refused)?;
        let endpoint = endpoint.map(|(_, value)| value);
        let cas = self.authorities(settings).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let proxies = Arc::new(Proxies::of(settings, self.provider.prefix()));
        let answers = || WholeAnswers::new(Arc::clone(&clock), Arc::clone(&proxies));
        let connect = |answers: WholeAnswers| {
            let store = self.connect(settings, &cas, answers);
            store.map_err(|error| self.refusal(settings, endpoint, error))
        };
        let first = connect(answers().until(Deadline::after(&*clock, CONTACT)))?;
        let probed = self.probe(&*first, &*random).await;
        probed.map_err(|error| self.refusal(settings, endpoint, error))?;
        let store = connect(answers())?;
        if let Err(error) = sweep(&*store, clock.now()).await {
            tracing::warn!(store = %self, %error, "probes that killed starts left are not removed");
        }
        Ok(Arc::new(RemoteStore::new(store, self.to_string(), random, GAP)))
    }

    async fn completed(
        &self,
        settings: Vec<(String, String)>,
    ) -> Result<Vec<(String, String)>, Error> {
        if self.provider != Provider::S3 {
            return Ok(settings);
        }
        let completed = blocking::run(move || profile::completed(settings)).await;
        let stopped = |why| Error::because(Kind::Unavailable, ACTION, self, why);
        let refused = |why: String| Error::because(Kind::Unsupported, ACTION, self, why);
        completed.map_err(stopped)?.map_err(refused)
    }

    /// The CAs in the file of `AWS_CA_BUNDLE`, trusted beside the CAs of the machine.
    async fn authorities(&self, settings: &[(String, String)]) -> Result<Vec<Certificate>, Error> {
        let is_given = |(name, file): &&(String, String)| name == CA_BUNDLE && !file.is_empty();
        let given = settings.iter().find(is_given).filter(|_| self.provider == Provider::S3);
        let Some((_, file)) = given.cloned() else { return Ok(Vec::new()) };
        let named = file.clone();
        let read = blocking::run(move || std::fs::read(file)).await;
        let stopped = |why| Error::because(Kind::Unavailable, ACTION, self, why);
        let refused = |why: String| {
            let why =
                format!("{CA_BUNDLE} is {named:?}: {why}; give a file with certificates (PEM)");
            Error::because(Kind::Unsupported, ACTION, self, why)
        };
        let pem = read.map_err(stopped)?.map_err(|why| refused(why.to_string()))?;
        let found = Certificate::from_pem_bundle(&pem).map_err(|why| refused(why.to_string()))?;
        if found.is_empty() {
            return Err(refused("there is no certificate in it".to_owned()));
        }
        Ok(found)
    }

    fn connect(
        &self,
        settings: &[(String, String)],
        cas: &[Certificate],
        answers: WholeAnswers,
    ) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        match self.provider {
            Provider::S3 => {
                let builder = AmazonS3Builder::new()
                    .with_client_options(
                        cas.iter()
                            .cloned()
                            .fold(connections(), ClientOptions::with_root_certificate),
                    )
                    .with_retry(patience())
                    .with_http_connector(answers)
                    // Objects are deleted singly; not all S3-compatible servers have bulk deletes.
                    .with_disable_bulk_delete(true);
                let builder = given(settings, self.provider.prefix(), "")
                    .fold(builder, |builder, (key, value)| builder.with_config(key, value));
                self.below(builder.with_bucket_name(&self.bucket).build()?)
            }
            Provider::Google => {
                let builder = GoogleCloudStorageBuilder::new()
                    .with_client_options(connections())
                    .with_retry(patience())
                    .with_http_connector(answers);
                let builder = given(settings, self.provider.prefix(), "SERVICE_ACCOUNT")
                    .fold(builder, |builder, (key, value)| builder.with_config(key, value));
                self.below(builder.with_bucket_name(&self.bucket).build()?)
            }
            Provider::Azure => {
                let builder = MicrosoftAzureBuilder::new()
                    .with_client_options(connections())
                    .with_retry(patience())
                    .with_http_connector(answers);
                let builder = given(settings, self.provider.prefix(), "MSI_ENDPOINT")
                    .fold(builder, |builder, (key, value)| builder.with_config(key, value));
                self.below(builder.with_container_name(&self.bucket).build()?)
            }
        }
    }

    fn below(&self, store: impl ObjectStore) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        Ok(if self.prefix.is_empty() {
            Arc::new(store)
        } else {
            Arc::new(PrefixStore::new(store, Path::parse(&self.prefix)?))
        })
    }

    /// Creates an object twice under a fresh name that is no key, and removes the object. An error gives
    /// the reason why the bucket can't be used.
    async fn probe(&self, store: &dyn ObjectStore, random: &dyn Random) -> Result<(), ObjectError> {
        let name = Path::from(format!("{PROBE}{:016x}{:016x}", random.u64(), random.u64()));
        let create = async |body: &'static str| {
            let mode = PutOptions { mode: PutMode::Create, ..Default::default() };
            store.put_opts(&name, body.into(), mode).await
        };
        let first = create("first").await;
        let second = match &first {
            Ok(_) => create("second").await,
            // The answer was lost, and the retry found its own object.
            Err(error) if kind_of(error) == Kind::Exists => return remove(store, &name).await,
            Err(_) => return first.map(drop),
        };
        let removed = remove(store, &name).await;
        match second {
            Err(error) if kind_of(&error) == Kind::Exists => removed,
            Err(error) => Err(error),
            Ok(_) => Err(ObjectError::NotSupported { source: Replaces.into() }),
        }
    }

    /// The error with the remedy.
    fn refusal(
        &self,
        settings: &[(String, String)],
        endpoint: Option<&str>,
        error: ObjectError,
    ) -> Error {
        let variables = match self.provider {
            Provider::S3 if !profile::has_credentials(settings) => {
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (which are neither set nor in a profile \
                 below ~/.aws, so that a role of this machine was asked for)"
            }
            Provider::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile with them",
            Provider::Google => "GOOGLE_SERVICE_ACCOUNT",
            Provider::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        };
        let variable = self.provider.endpoint_name();
        let proxies = Proxies::of(settings, self.provider.prefix());
        let uri = endpoint.unwrap_or(self.provider.own()).parse().ok();
        let through = uri.and_then(|uri| proxies.through(&uri));
        let endpoint = endpoint.unwrap_or("the provider's own address");
        let told = error.to_string();
        let bucket = &self.bucket;
        let kind = kind_of(&error);
        let hint = match kind {
            Kind::Denied if told.contains("RequestTimeTooSkewed") => format!(
                "bucket {bucket} at {endpoint} finds the clock of this machine too far off: set the \
                 clock (NTP)"
            ),
            Kind::Missing => format!(
                "there is no bucket {bucket} at {endpoint}: create the bucket, or correct the address or {variable}"
            ),
            Kind::Denied => format!(
                "bucket {bucket} at {endpoint} refuses: correct {variables}, or their permissions \
                 (read, write, delete, list)"
            ),
            Kind::Unsupported => {
                format!("bucket {bucket} at {endpoint} can't hold a chunk store")
            }
            Kind::Unavailable
            | Kind::Exists
            | Kind::Conflict
            | Kind::Full
            | Kind::Corrupt
            | Kind::Lost
            | Kind::InUse => {
                let by = through.as_ref().map_or(String::new(), |through| {
                    format!(" through the proxy {} of {}", through.proxy, through.variable)
                });
                match self.unreached(settings, &told, through.as_ref()) {
                    Some(remedy) => format!("{endpoint} can't be reached{by}: {remedy}"),
                    None => format!(
                        "bucket {bucket} at {endpoint} does not answer{by} as it should: correct \
                         {variable}, the region or {variables}"
                    ),
                }
            }
        };
        let kind = if kind == Kind::Missing { Kind::Unsupported } else { kind };
        // object_store's texts contain their causes.
        Error::because(kind, ACTION, self, format!("{hint}: {told}"))
    }

    /// The remedy for a request that no HTTP server answered, from the text of the cause. None for an
    /// answer, and where the keys were to come from a role of the machine.
    fn unreached(
        &self,
        settings: &[(String, String)],
        told: &str,
        through: Option<&Through<'_>>,
    ) -> Option<String> {
        let is_s3 = self.provider == Provider::S3;
        if !told.contains(NO_ANSWER) || (is_s3 && !profile::has_credentials(settings)) {
            return None;
        }
        let variable = self.provider.endpoint_name();
        let ca = if is_s3 { "AWS_CA_BUNDLE or SSL_CERT_FILE" } else { "SSL_CERT_FILE" };
        // Google's client needs no switch for http://.
        let cloud = if is_s3 { "AWS" } else { "AZURE" };
        let (refused, unknown, other) = match through {
            None => (
                format!("start the store there, or correct {variable}"),
                format!("correct the host in {variable}, or the DNS of this machine"),
                format!("correct {variable}, or the network between"),
            ),
            Some(Through { variable, except, .. }) => {
                let else_directly = format!("or name the store's host in {except}");
                (
                    format!("start the proxy, correct {variable}, {else_directly}"),
                    format!("correct the host in {variable}, {else_directly}"),
                    format!("look at the proxy, correct {variable}, {else_directly}"),
                )
            }
        };
        let remedies = [
            ("refused", refused),
            ("lookup address", unknown),
            (
                "UnknownIssuer",
                format!("name the file with the CA of its certificate (PEM) in {ca}"),
            ),
            ("peer certificate", format!("correct {variable}, or replace the store's certificate")),
            (
                "scheme is not allowed",
                format!("an address with http:// needs {cloud}_ALLOW_HTTP=true"),
            ),
            ("", other),
        ];
        remedies.into_iter().find(|(cause, _)| told.contains(cause)).map(|(_, remedy)| remedy)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.provider.scheme();
        write!(f, "{scheme}://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// Removes an object that may be gone: the answer of an earlier try may have been lost.
async fn remove(store: &dyn ObjectStore, name: &Path) -> Result<(), ObjectError> {
    match store.delete(name).await {
        Err(error) if is_missing(&error) => Ok(()),
        removed => removed,
    }
}

/// Removes probes that were left by starts that were killed.
async fn sweep(store: &dyn ObjectStore, now: SystemTime) -> Result<(), ObjectError> {
    let mut listed = store.list_with_offset(None, &Path::from(PROBE)).take(PROBES_MAX);
    while let Some(object) = listed.try_next().await? {
        // Names come in order, and other programs share the bucket.
        let Some(drawn) = object.location.as_ref().strip_prefix(PROBE) else { break };
        let is_probe = drawn.len() == 32 && drawn.bytes().all(|byte| byte.is_ascii_hexdigit());
        let age = now.duration_since(object.last_modified.into()).unwrap_or_default();
        if is_probe && age >= PROBE_LEFT {
            remove(store, &object.location).await?;
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the store replaced an object that was to be created only if missing (If-None-Match: *); two servers \
     could overwrite each other's chunks: use a store with conditional writes"
)]
struct Replaces;

/// The settings for a builder: variables with its prefix, and the variable `other`.
fn given<'a, Name: FromStr>(
    settings: &'a [(String, String)],
    prefix: &'a str,
    other: &'a str,
) -> impl Iterator<Item = (Name, &'a str)> {
    let known = move |name: &&(String, String)| name.0.starts_with(prefix) || name.0 == other;
    settings
        .iter()
        .filter(known)
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.as_str())))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn a_start_removes_probes_that_are_a_day_old_and_nothing_else() {
        let left = format!("{PROBE}{:032x}", 7);
        let others = [".a", ".probe-of-somebody-else", ".probe-1/2", "names/ds/00000001"];
        let below = PrefixStore::new(InMemory::new(), "p");
        let stores: [&dyn ObjectStore; 2] = [&InMemory::new(), &below];
        for store in stores {
            for name in others.into_iter().chain([left.as_str()]) {
                store.put(&name.into(), "first".into()).await.unwrap();
            }
            let now = SystemClock::new().now();
            let hour = Duration::from_secs(60 * 60);
            for (hours, count) in [(23, 5), (25, 4)] {
                sweep(store, now + hour * hours).await.unwrap();
                let names: Vec<_> = store.list(None).try_collect().await.unwrap();
                assert_eq!(names.len(), count, "{names:?}");
            }
            assert!(is_missing(&store.head(&left.as_str().into()).await.unwrap_err()));
        }
    }

    #[test]
    fn an_address_names_a_bucket_and_a_prefix_that_may_be_empty() {
        for (url, bucket, prefix, shown) in [
            ("s3://b", "b", "", "s3://b"),
            ("s3://b/", "b", "", "s3://b"),
            ("gs://b-1/p", "b-1", "p", "gs://b-1/p"),
            ("az://b.c/p/q/", "b.c", "p/q", "az://b.c/p/q"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!((address.bucket.as_str(), address.prefix.as_str()), (bucket, prefix));
            assert_eq!(address.to_string(), shown);
        }
        for url in ["s3:b", "s3://", "s3:///p", "s3://b//p", "s3://b/a b", "s3://b/.p", "x://b"] {
            assert_eq!(Address::parse(url), None, "{url}");
        }
    }
}
