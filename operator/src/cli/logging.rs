//! Logs on standard error, filtered by `RUST_LOG`, as text for people or as JSON for collectors.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// What a log line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Sends the logs of this process to standard error. Without `RUST_LOG`: warnings of libraries, information of our own.
pub(super) fn init_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,rumqttd=off,mqtt_loadtest=info,mqtt_loadtest_operator=info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).init(),
        LogFormat::Text => builder.init(),
    }
}
