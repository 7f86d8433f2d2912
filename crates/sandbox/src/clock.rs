//! The one place of the local world that reads the machine's clock and sleeps.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;

/// The time now.
#[allow(clippy::disallowed_methods, reason = "this is the module that may")]
pub fn now() -> OffsetDateTime {
    SystemTime::now().into()
}

/// Waits.
#[allow(clippy::disallowed_methods, reason = "this is the module that may")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A moment as AWS' JSON services write it: seconds since 1970 with a fraction.
pub fn epoch_seconds(moment: OffsetDateTime) -> f64 {
    (moment.unix_timestamp_nanos() / 1_000_000) as f64 / 1000.0
}

/// A moment as AWS' XML services write it: `2026-01-02T03:04:05Z`.
pub fn iso(moment: OffsetDateTime) -> String {
    let format = time::macros::format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    moment.to_offset(time::UtcOffset::UTC).format(&format).unwrap_or_default()
}

/// A moment with milliseconds: `2026-01-02T03:04:05.678Z`.
pub fn rfc3339(moment: OffsetDateTime) -> String {
    let format = time::macros::format_description!(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
    );
    moment.to_offset(time::UtcOffset::UTC).format(&format).unwrap_or_default()
}
