//! The settings of Amazon's tools in `~/.aws/credentials` and `~/.aws/config`: keys, region, address.
//!
//! Must hold: variables of the process take precedence over these files. No line of the files is shown.
//! A profile that was asked for by name is an error when it is missing or can't be used.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Variables and their values.
type Settings = Vec<(String, String)>;

/// Each of these variables names a source of keys.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Variables with another address than Amazon's, the usual variable first.
const ENDPOINT: [&str; 3] = ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"];

/// The profile without a name of its own.
const DEFAULT: &str = "default";

/// Settings of a profile for keys that only Amazon's tools can get.
const ELSEWHERE: [&str; 5] =
    ["credential_process", "role_arn", "sso_session", "sso_start_url", "web_identity_token_file"];

/// The settings, completed from the profile where no variable is set. Reads files.
///
/// # Errors
/// Why the profile can't be used.
pub(crate) fn completed(mut settings: Settings) -> Result<Settings, String> {
    let named = value(&settings, &["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]).map(str::to_owned);
    let Some(profile) = profile(&settings, named.as_deref())? else { return Ok(settings) };
    let of = |key: &str| profile.get(key).filter(|value| !value.is_empty()).cloned();
    let mut more = Vec::new();
    if value(&settings, &CREDENTIALS).is_none() {
        more.extend(keys(&of, named.as_deref())?);
    }
    if value(&settings, &REGION).is_none() {
        more.extend(of("region").map(|region| ("AWS_REGION", region)));
    }
    if value(&settings, &ENDPOINT).is_none() {
        more.extend(of("endpoint_url").map(|url| ("AWS_ENDPOINT_URL", url)));
    }
    settings.retain(|(known, _)| more.iter().all(|(name, _)| known != name));
    settings.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Ok(settings)
}

/// The profile in both files; none where it has no name and is missing.
fn profile(
    settings: &Settings,
    named: Option<&str>,
) -> Result<Option<BTreeMap<String, String>>, String> {
    let name = named.unwrap_or(DEFAULT);
    let place = |variable: &str, usual: &str| {
        let home =
            || value(settings, &["HOME"]).map(|home| Path::new(home).join(".aws").join(usual));
        value(settings, &[variable]).map(PathBuf::from).or_else(home)
    };
    let places =
        [place("AWS_CONFIG_FILE", "config"), place("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    let mut profile = None;
    // The second file takes precedence.
    for path in places.iter().flatten() {
        match fs::read_to_string(path) {
            Ok(text) => {
                if let Some(found) = section(&text, name) {
                    profile.get_or_insert_with(BTreeMap::new).extend(found);
                }
            }
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(why) if named.is_some() => return Err(format!("{}: {why}", path.display())),
            Err(why) => {
                tracing::warn!(path = %path.display(), %why, "can't read profiles from the file")
            }
        }
    }
    if let (None, Some(name)) = (&profile, named) {
        let looked = places.iter().flatten().map(|path| path.display().to_string());
        return Err(format!(
            "AWS_PROFILE is {name:?}, and there is no such profile in {}",
            looked.collect::<Vec<_>>().join(" or ")
        ));
    }
    Ok(profile)
}

/// The variables for the keys in a profile.
fn keys(
    of: &impl Fn(&str) -> Option<String>,
    named: Option<&str>,
) -> Result<Vec<(&'static str, String)>, String> {
    let name = named.unwrap_or(DEFAULT);
    match (of("aws_access_key_id"), of("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            let token = of("aws_session_token").map(|token| ("AWS_SESSION_TOKEN", token));
            let keys = [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret)];
            Ok(keys.into_iter().chain(token).collect())
        }
        (Some(_), None) | (None, Some(_)) => {
            let both = "aws_access_key_id and aws_secret_access_key";
            Err(format!("profile {name:?} has one of {both} and lacks the other"))
        }
        (None, None) => match ELSEWHERE.iter().find(|key| named.is_some() && of(key).is_some()) {
            Some(key) => Err(format!(
                "profile {name:?} gets its keys by {key}, which is not supported: put them into \
                 variables, as `aws configure export-credentials --format env` prints them"
            )),
            None => Ok(Vec::new()),
        },
    }
}

/// Whether the settings name a source of keys.
pub(crate) fn has_credentials(settings: &[(String, String)]) -> bool {
    value(settings, &CREDENTIALS).is_some()
}

/// The value of the first variable in `names` that is set.
fn value<'a>(settings: &'a [(String, String)], names: &[&str]) -> Option<&'a str> {
    let is_set = |name: &str| {
        let set = settings.iter().find(|(known, value)| known == name && !value.is_empty());
        set.map(|(_, value)| value.as_str())
    };
    names.iter().find_map(|name| is_set(name))
}

/// The settings of a profile in a file, by key; none without the heading of the profile.
fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut is_in = false;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let heading = heading.trim();
            is_in = heading.strip_prefix("profile ").unwrap_or(heading).trim() == name;
            if is_in {
                found.get_or_insert_default();
            }
        } else if is_in
            && !is_nested
            && let (Some(found), Some((key, value))) = (&mut found, line.split_once('='))
        {
            let comment = value.find(" #").or_else(|| value.find(" ;")).unwrap_or(value.len());
            let value = value.get(..comment).unwrap_or(value).trim();
            found.insert(key.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS_FILE: &str = "\
# of somebody
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key=default/secret+=
[lab]
aws_access_key_id = LAB ; rotated
AWS_SECRET_ACCESS_KEY = labsecret
aws_session_token = labtoken
[half]
aws_access_key_id = HALF
";

    const CONFIG_FILE: &str = "\
[default]
region = eu-west-1
[profile lab]
region = us-west-2
endpoint_url = https://s3.lab
aws_access_key_id = LESS
s3 =
  region = nested
[profile role]
role_arn = arn:aws:iam::1:role/r
[profile place]
region = ap-south-1
";

    fn with(variables: &[(&str, &str)]) -> Result<BTreeMap<String, String>, String> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(home.path().join(".aws/credentials"), CREDENTIALS_FILE).unwrap();
        fs::write(home.path().join(".aws/config"), CONFIG_FILE).unwrap();
        let given = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let home = ("HOME".to_owned(), home.path().to_str().unwrap().to_owned());
        completed(given.chain([home]).collect()).map(|settings| {
            settings.into_iter().filter(|(name, _)| name.starts_with("AWS_")).collect()
        })
    }

    fn shown(variables: &[(&str, &str)]) -> String {
        let said = with(variables).unwrap();
        let said: Vec<_> =
            said.iter().map(|(name, value)| format!("{}={value}", &name[4..])).collect();
        said.join(" ")
    }

    #[test]
    fn a_profile_completes_the_variables() {
        let default = "ACCESS_KEY_ID=DEFAULT REGION=eu-west-1 SECRET_ACCESS_KEY=default/secret+=";
        assert_eq!(shown(&[]), default);
        assert_eq!(
            shown(&[("AWS_PROFILE", "lab")]),
            "ACCESS_KEY_ID=LAB ENDPOINT_URL=https://s3.lab PROFILE=lab REGION=us-west-2 \
             SECRET_ACCESS_KEY=labsecret SESSION_TOKEN=labtoken"
        );
        // Both keys come from one source.
        let own = [("AWS_ACCESS_KEY_ID", "OWN"), ("AWS_SECRET_ACCESS_KEY", "s")];
        assert_eq!(shown(&own), "ACCESS_KEY_ID=OWN REGION=eu-west-1 SECRET_ACCESS_KEY=s");
        let elsewhere =
            [("AWS_DEFAULT_REGION", "r"), ("AWS_ENDPOINT", "e"), ("AWS_SKIP_SIGNATURE", "1")];
        assert_eq!(shown(&elsewhere), "DEFAULT_REGION=r ENDPOINT=e SKIP_SIGNATURE=1");
        assert_eq!(shown(&[("AWS_PROFILE", "place")]), "PROFILE=place REGION=ap-south-1");
        assert_eq!(completed(vec![]), Ok(vec![]));
    }

    #[test]
    fn an_unusable_profile_is_an_error_without_its_lines() {
        for (name, told) in
            [("nobody", ".aws/credentials"), ("half", "lacks the other"), ("role", "role_arn")]
        {
            let why = with(&[("AWS_PROFILE", name)]).unwrap_err();
            assert!(why.contains(told) && why.contains(name), "{why}");
            assert!(!why.contains("HALF") && !why.contains("arn:aws"), "{why}");
        }
    }
}
