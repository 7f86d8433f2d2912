//! The one place of the emulator that reads the time and sleeps.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The time now, to the second, as Kubernetes writes it: `2026-01-31T12:00:00Z`.
#[allow(clippy::disallowed_methods, reason = "this is the module that may")]
pub fn now() -> String {
    stamp(SystemTime::now())
}

/// Whole seconds since 1970.
#[allow(clippy::disallowed_methods, reason = "this is the module that may")]
pub fn unix() -> i64 {
    OffsetDateTime::from(SystemTime::now()).unix_timestamp()
}

/// A moment as Kubernetes writes it.
pub fn stamp(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at).replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}

/// The seconds since 1970 of a moment as Kubernetes writes it.
pub fn parse(text: &str) -> Option<i64> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp)
}

/// Waits.
#[allow(clippy::disallowed_methods, reason = "this is the module that may")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A duration as Go writes and reads it: `10m0s`, `1h30m`, `500ms`.
pub fn parse_go(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number * seconds;
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// The same, written: whole seconds and more as Go does it, below that in milliseconds.
pub fn format_go(duration: Duration) -> String {
    let total = duration.as_secs();
    if total == 0 {
        return if duration.is_zero() {
            "0s".to_owned()
        } else {
            format!("{}ms", duration.as_millis().max(1))
        };
    }
    let (hours, minutes, seconds) = (total / 3600, total / 60 % 60, total % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, seconds, back) in [
            ("10m0s", 600.0, "10m0s"),
            ("30s", 30.0, "30s"),
            ("1h30m", 5400.0, "1h30m0s"),
            ("1.5s", 1.5, "1s"),
            ("200ms", 0.2, "200ms"),
        ] {
            let read = parse_go(text).unwrap();
            assert_eq!(read, Duration::from_secs_f64(seconds), "{text}");
            assert_eq!(format_go(read), back, "{text}");
        }
        for bad in ["", "10", "m", "5d"] {
            assert_eq!(parse_go(bad), None, "{bad}");
        }
    }
}
