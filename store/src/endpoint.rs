//! The endpoint of a cloud: its variable, and the check that the bucket in the store's URL is used.
//!
//! Must hold: settings under which object_store would write into another bucket or container are
//! refused with the variable to change. No login in a variable is shown.

use dl_runtime::masked;
use url::{Host, Url};

/// The owner of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    S3,
    Google,
    Azure,
}

impl Provider {
    /// The scheme of URLs.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    /// Variables with another address than the provider's, the usual variable first.
    fn endpoints(self) -> &'static [&'static str] {
        match self {
            Self::S3 => &["AWS_ENDPOINT", "AWS_ENDPOINT_URL"],
            Self::Google => &["GOOGLE_BASE_URL"],
            Self::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        }
    }

    /// The prefix of the provider's variables.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Google => "GOOGLE_",
            Self::Azure => "AZURE_",
        }
    }

    /// The provider's own address.
    pub(crate) fn own(self) -> &'static str {
        match self {
            Self::S3 => "https://s3.amazonaws.com",
            Self::Google => "https://storage.googleapis.com",
            Self::Azure => "https://blob.core.windows.net",
        }
    }

    /// The usual variable for the endpoint.
    pub(crate) fn endpoint_name(self) -> &'static str {
        self.endpoints().first().copied().unwrap_or_default()
    }
}

/// The variable and value of the endpoint for `bucket`; none for the provider's own endpoint.
///
/// # Errors
/// The variable that would send objects elsewhere, and a correct value.
pub(crate) fn endpoint<'a>(
    provider: Provider,
    bucket: &str,
    settings: &'a [(String, String)],
) -> Result<Option<(&'a str, &'a str)>, String> {
    let find = |wanted: &str| settings.iter().find(|(name, _)| name == wanted);
    // Amazon's tools have the same precedence.
    let specific = find("AWS_ENDPOINT_URL_S3").filter(|_| provider == Provider::S3);
    let general: Vec<_> = provider.endpoints().iter().filter_map(|name| find(name)).collect();
    for (name, value) in specific.into_iter().chain(general.iter().copied()) {
        check_form(name, value)?;
    }
    if let (None, [(first, one), (second, other)]) = (specific, general.as_slice())
        && one.trim_end_matches('/') != other.trim_end_matches('/')
    {
        return Err(format!("{first} and {second} name two endpoints: unset one of the two"));
    }
    let endpoint = specific.or(general.first().copied());
    if provider == Provider::Azure
        && let Some((name, _)) = endpoint
        && let Some((emulator, _)) = switched_on(settings, "AZURE_STORAGE_USE_EMULATOR")
    {
        let why = "both are set, and object_store would ignore the endpoint: unset one of the two";
        return Err(format!("{emulator} and {name}: {why}"));
    }
    let Some((name, value)) = endpoint else { return Ok(None) };
    check_bucket(provider, bucket, (name, value), settings)?;
    Ok(Some((name, value)))
}

/// Refuses text that makes object_store panic later, or show a login.
fn check_form(name: &str, value: &str) -> Result<(), String> {
    let host = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"));
    let is_endpoint = host.is_some_and(|host| {
        !host.starts_with('/')
            && !host.contains(['@', '?', '#', '\\'])
            && host.bytes().all(|byte| byte.is_ascii_graphic())
            && Url::parse(value).is_ok()
    });
    if is_endpoint {
        return Ok(());
    }
    Err(format!("{name} is {:?}: give http://HOST:PORT or https://HOST", masked(value)))
}

/// Refuses an endpoint that names a bucket.
fn check_bucket(
    provider: Provider,
    bucket: &str,
    (name, value): (&str, &str),
    settings: &[(String, String)],
) -> Result<(), String> {
    let (_, after) = value.split_once("://").unwrap_or_default();
    let (host, path) = after.split_once('/').unwrap_or((after, ""));
    let path = path.trim_end_matches('/');
    let account = settings.iter().find(|(name, _)| name == "AZURE_STORAGE_ACCOUNT_NAME");
    let is_account = || account.is_some_and(|(_, account)| account == path);
    let may_have_path = provider == Provider::Azure && is_account();
    if !path.is_empty() && !may_have_path {
        let remedy = match provider {
            Provider::S3 | Provider::Google => "give the endpoint without a path",
            Provider::Azure => "give the endpoint without a path, or with /ACCOUNT for Azurite",
        };
        return Err(format!(
            "{name} is {value:?}: object_store would take the first part of its path for the bucket; \
             {remedy}, and bucket and prefix in the store's URL"
        ));
    }
    let in_host = host.strip_prefix(bucket).is_some_and(|rest| rest.starts_with('.'));
    if let Some((switch, _)) = switched_on(settings, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
        && provider == Provider::S3
        && !in_host
    {
        let is_name =
            Url::parse(value).is_ok_and(|url| matches!(url.host(), Some(Host::Domain(_))));
        let or =
            if is_name { format!(", or put {bucket}. before the host") } else { String::new() };
        return Err(format!(
            "{switch} is on and {name} is {value:?}, without the bucket: object_store would take the \
             first part of the prefix for the bucket; unset {switch}{or}"
        ));
    }
    Ok(())
}

/// A switch with a value that object_store takes for true.
fn switched_on<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a (String, String)> {
    let is_on = |value: &str| {
        ["1", "true", "on", "yes", "y"].iter().any(|on| value.eq_ignore_ascii_case(on))
    };
    settings.iter().find(|(known, value)| known == name && is_on(value))
}

#[cfg(test)]
mod tests;
