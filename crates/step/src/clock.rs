//! The one place that reads the time and sleeps; `clippy.toml` bans both elsewhere, so that
//! everything that depends on time can be tested without waiting.

use std::time::{Duration, SystemTime};

/// Where a step gets its time from.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    System,
    /// Stands still at one moment; sleeping returns at once.
    Fixed(SystemTime),
}

impl Clock {
    /// The time now.
    #[allow(clippy::disallowed_methods, reason = "this is the module that may")]
    pub fn now(&self) -> SystemTime {
        match self {
            Clock::System => SystemTime::now(),
            Clock::Fixed(at) => *at,
        }
    }

    /// Waits, for at most a few seconds: longer waits belong to the state machine.
    #[allow(clippy::disallowed_methods, reason = "this is the module that may")]
    pub async fn sleep(&self, duration: Duration) {
        if matches!(self, Clock::System) {
            tokio::time::sleep(duration).await;
        }
    }
}
