//! Accepted and refused endpoints.

use super::*;

fn found(provider: Provider, settings: &[(&str, &str)]) -> Result<Option<String>, String> {
    let owned = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let settings: Vec<(String, String)> = owned.collect();
    endpoint(provider, "b", &settings).map(|found| found.map(|(_, value)| value.to_owned()))
}

#[test]
fn an_endpoint_that_names_a_host_is_taken() {
    const VIRTUAL: (&str, &str) = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
    const ACCOUNT: (&str, &str) = ("AZURE_STORAGE_ACCOUNT_NAME", "acct");
    for (provider, settings, endpoint) in [
        (Provider::S3, &[][..], None),
        (Provider::S3, &[VIRTUAL], None),
        (Provider::S3, &[("AWS_ENDPOINT", "http://h:1/")], Some("http://h:1/")),
        (Provider::S3, &[("AWS_ENDPOINT", "https://b.h"), VIRTUAL], Some("https://b.h")),
        (
            Provider::S3,
            &[("AWS_ENDPOINT", "https://h"), ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "off")],
            Some("https://h"),
        ),
        (
            Provider::S3,
            &[("AWS_ENDPOINT_URL", "https://all"), ("AWS_ENDPOINT_URL_S3", "https://s3")],
            Some("https://s3"),
        ),
        (
            Provider::S3,
            &[("AWS_ENDPOINT", "https://h"), ("AWS_ENDPOINT_URL", "https://h/")],
            Some("https://h"),
        ),
        (Provider::Google, &[("GOOGLE_BASE_URL", "http://h")], Some("http://h")),
        (Provider::Azure, &[("AZURE_STORAGE_USE_EMULATOR", "true")], None),
        (
            Provider::Azure,
            &[("AZURE_STORAGE_ENDPOINT", "http://h:1/acct"), ACCOUNT],
            Some("http://h:1/acct"),
        ),
    ] {
        let found = found(provider, settings);
        assert_eq!(found, Ok(endpoint.map(str::to_owned)), "{settings:?}");
    }
}

#[test]
fn settings_that_send_objects_to_another_bucket_are_refused() {
    const PATH: &str = "without a path";
    const VIRTUAL: &str = "unset AWS_VIRTUAL_HOSTED_STYLE_REQUEST, or put b. before";
    for (provider, settings, told) in [
        (
            Provider::S3,
            &[("AWS_ENDPOINT", "http://h:1"), ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "Yes")][..],
            VIRTUAL,
        ),
        (
            Provider::S3,
            &[("AWS_ENDPOINT_URL_S3", "https://bb.h"), ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "1")],
            VIRTUAL,
        ),
        (Provider::S3, &[("AWS_ENDPOINT_URL", "https://h/other")], PATH),
        (
            Provider::S3,
            &[("AWS_ENDPOINT", "https://h"), ("AWS_ENDPOINT_URL", "https://i")],
            "AWS_ENDPOINT and AWS_ENDPOINT_URL name two endpoints",
        ),
        (Provider::Google, &[("GOOGLE_BASE_URL", "http://h/other/")], PATH),
        (
            Provider::Azure,
            &[
                ("AZURE_STORAGE_ENDPOINT", "https://h/other"),
                ("AZURE_STORAGE_ACCOUNT_NAME", "acct"),
            ],
            PATH,
        ),
        (
            Provider::Azure,
            &[("AZURE_ENDPOINT", "https://h"), ("AZURE_STORAGE_USE_EMULATOR", "true")],
            "unset one",
        ),
    ] {
        let refused = found(provider, settings).expect_err("other bucket");
        assert!(refused.contains(told), "{refused}");
    }
}

#[test]
fn text_that_is_no_address_is_refused_without_its_login() {
    for wrong in [
        "",
        "here",
        "http://",
        "http:///x",
        "https://a b",
        "ftp://a",
        "http://K:SEC@h",
        "http://h?x",
        "http://127.0.0.256:9000",
        "http://h:99999",
        "http://h:x",
        "http://[::1:9000",
        "http://%zz",
        "http://h\\x",
        "http://a|b",
    ] {
        let refused = found(Provider::S3, &[("AWS_ENDPOINT_URL", wrong)]).expect_err("no address");
        assert!(refused.contains("AWS_ENDPOINT_URL") && !refused.contains("SEC"), "{refused}");
    }
}
