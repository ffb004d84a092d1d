//! Addresses in errors and logs, without passwords.
//!
//! Must hold: user and password of a text like `USER:PASSWORD@HOST` are not shown, in any spelling. A text
//! that begins like a path is shown in full.

use std::borrow::Cow;

/// A text with `***` in the place of a login.
pub fn masked(text: &str) -> Cow<'_, str> {
    // A password may hold any character, also `@`.
    let Some((login, rest)) = text.rsplit_once('@') else { return text.into() };
    let scheme = match (login.find("://"), login.find(':')) {
        (Some(at), _) => at + "://".len(),
        (None, Some(at)) => at + 1,
        (None, None) => return text.into(),
    };
    let (scheme, login) = login.split_at(scheme);
    let is_path = text.starts_with(['/', '.']) && !scheme.ends_with("://");
    let is_in_path = login.contains('/') && !login.contains(':') && scheme.ends_with("://");
    if is_path || is_in_path {
        return text.into();
    }
    format!("{scheme}***@{rest}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_login_is_shown_and_addresses_without_one_stay() {
        for (text, shown) in [
            ("redis://:pw@host:1/0", "redis://***@host:1/0"),
            ("etcd:user:pw@host:1/key", "etcd:***@host:1/key"),
            ("ectd://user:p/w@a:1,b:1/key", "ectd://***@a:1,b:1/key"),
            ("s3://KEY:SEC@RET@bucket", "s3://***@bucket"),
            ("http://token@host", "http://***@host"),
            ("user:pw@host", "user:***@host"),
        ] {
            assert_eq!(masked(text), shown);
            assert_eq!(masked(shown), shown, "again");
        }
        for text in ["/data/a:b@c", "./a:b@c", "file:///data/a@b", "ann@lab", "10.0.0.1:7", ""] {
            assert_eq!(masked(text), text);
        }
    }
}
