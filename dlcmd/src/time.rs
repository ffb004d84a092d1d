//! Points in time as text: RFC 3339 in UTC, and ages such as `2h`.
//!
//! Must hold: a printed time parses to the same point; the time zone of the machine plays no role.

use std::time::SystemTime;

use dl_format::Stamp;
use dl_runtime::units;

const DAY: i64 = 86_400;
const NANOS: i64 = 1_000_000_000;

/// Seconds since 1970 as `2026-11-20T11:25:09Z`. Every time within 64 bits of nanoseconds has a
/// year of four digits.
pub(crate) fn seconds_text(seconds: i64) -> [u8; 20] {
    let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let mut text = *b"0000-00-00T00:00:00Z";
    let mut digits = |at: usize, width: usize, mut value: i64| {
        for slot in text[at..at + width].iter_mut().rev() {
            *slot = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    digits(0, 4, year);
    digits(5, 2, month);
    digits(8, 2, day);
    digits(11, 2, second / 3600);
    digits(14, 2, second / 60 % 60);
    digits(17, 2, second % 60);
    text
}

/// Nanoseconds since 1970, rounded down to the second.
pub(crate) fn mtime_text(nanos: i64) -> [u8; 20] {
    seconds_text(nanos.div_euclid(NANOS))
}

/// Nanoseconds since 1970, in full: `2026-11-20T11:25:09.000000001Z`.
pub(crate) fn exact_text(nanos: i64) -> String {
    let [seconds @ .., _] = mtime_text(nanos);
    format!("{}.{:09}Z", String::from_utf8_lossy(&seconds), nanos.rem_euclid(NANOS))
}

/// The time of a stamp, in full.
pub(crate) fn stamp_text(stamp: Stamp) -> String {
    exact_text(i64::try_from(stamp.get()).unwrap_or(i64::MAX).saturating_mul(1000))
}

/// Parses RFC 3339, or an age before `now`: a number and its unit.
pub(crate) fn parse(text: &str, now: SystemTime) -> Result<Stamp, String> {
    if let Some(micros) = rfc3339(text) {
        return Ok(Stamp::new(micros));
    }
    let age = units::duration(text).ok_or_else(|| {
        "type a time such as 2026-11-20T11:25:00Z, or an age such as 30m, 2h or 7d".to_owned()
    })?;
    Ok(Stamp::at(now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH)))
}

/// Microseconds since 1970.
fn rfc3339(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let mut date = date.split('-');
    let (year, month) = (number(date.next()?, 4)?, number(date.next()?, 2)?);
    let day = number(date.next()?, 2)?;
    let days = days(year, month, day);
    if date.next().is_some() || civil(days) != (year, month, day) {
        return None;
    }
    let (clock, rest) = rest.split_at_checked(8)?;
    let mut clock = clock.split(':');
    let (hour, minute) = (number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let second = number(clock.next()?, 2)?;
    // 60 is a leap second.
    if clock.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|digit: char| !digit.is_ascii_digit())?),
        None => ("0", rest),
    };
    if fraction.is_empty() {
        return None;
    }
    let micros = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = micros.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let east = match zone {
        "Z" | "z" => 0,
        _ => {
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
            let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
            (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))?
        }
    };
    let seconds = days * DAY + hour * 3600 + minute * 60 + second - east;
    u64::try_from(seconds * 1_000_000 + micros).ok()
}

/// Exactly `width` digits.
fn number(text: &str, width: usize) -> Option<i64> {
    let digits = text.len() == width && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years begin in
/// March here, so that a leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_BEFORE_1970;
    let (era, day_of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * ERA + year * 365 + year / 4 - year / 100 + day_of_year - DAYS_BEFORE_1970
}

/// Days of 400 years.
const ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shown(seconds: i64) -> String {
        String::from_utf8_lossy(&seconds_text(seconds)).into_owned()
    }

    #[test]
    fn known_points_are_written_as_everyone_writes_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (i64::MIN / NANOS, "1677-09-21T00:12:44Z"),
            (i64::MAX / NANOS, "2262-04-11T23:47:16Z"),
        ] {
            assert_eq!(shown(seconds), text);
        }
        assert_eq!(exact_text(1), "1970-01-01T00:00:00.000000001Z");
        assert_eq!(exact_text(-1), "1969-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn printed_times_parse_to_the_same_point() {
        let now = SystemTime::UNIX_EPOCH;
        for day in (0..100_000).step_by(37) {
            let seconds = day * DAY + day % DAY;
            let micros = u64::try_from(seconds * 1_000_000).expect("after 1970");
            assert_eq!(parse(&shown(seconds), now), Ok(Stamp::new(micros)));
        }
    }

    #[test]
    fn fractions_and_zones_count() {
        let at = |text| parse(text, SystemTime::UNIX_EPOCH).map(Stamp::get);
        assert_eq!(at("1970-01-01T00:00:01.5Z"), Ok(1_500_000));
        assert_eq!(at("1970-01-01 01:00:00.000001+01:00"), Ok(1));
        assert_eq!(at("1969-12-31t23:30:00-00:30"), Ok(0));
    }

    #[test]
    fn an_age_counts_back_from_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (text, seconds) in [("10s", 10), ("30m", 1800), ("2h", 7200), ("7d", 604_800)] {
            assert_eq!(parse(text, now), Ok(Stamp::new((1_000_000 - seconds) * 1_000_000)));
        }
        assert_eq!(parse("9w", now), Ok(Stamp::new(0)));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "2",
            "h",
            "-2h",
            "2.5h",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "1969-01-01T00:00:00Z",
            "2026-01-01T00:00:00+1:00",
            "é026-01-01T00:00:00Z",
        ] {
            assert!(parse(text, SystemTime::UNIX_EPOCH).is_err(), "{text}");
        }
    }
}
