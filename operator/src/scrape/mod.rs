//! Talking to the workers of a run: collecting their status and counts, and telling them what to do. Both runtimes use it.
//!
//! A worker may hang or lie: every exchange has a deadline, answers have bounds and are validated before anything is believed,
//! and a round over any number of workers keeps only so many in flight that hanging ones cannot hold up the rest for long.

mod control;
mod memory;

pub use control::deliver;
pub use memory::{Memory, Remembered};

use std::time::Duration;

use futures::{StreamExt, stream};
use mqtt_loadtest_worker::{
    accounting::{
        Snapshot,
        metrics::{self, DecodeError, Limits},
    },
    protocol::{self, ShardStatus, Token},
};
use reqwest::{StatusCode, header};
use serde::Serialize;

/// Longest exchange with one worker: 1,000 workers of which 100 hang are asked within 2 s.
const DEADLINE: Duration = Duration::from_millis(500);
/// Workers that are asked at once.
const AT_ONCE: usize = 256;
/// Longest answer that is not an exposition: a status, or a problem.
const MAX_ANSWER: usize = 16 * 1024;
/// How long an unused connection is kept: longer than the longest pause between two rounds.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

/// A client for the workers' control ports; one for the whole process, as it pools its connections.
#[derive(Clone, Debug)]
pub struct Scraper {
    client: reqwest::Client,
    limits: Limits,
}

/// Where a worker listens and what opens it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `http://10.1.2.3:8081`, without a slash at the end.
    pub base: String,
    /// The bearer token of its run.
    pub token: Token,
    /// `status.run.id`: who answers for another run is not believed.
    pub run_id: String,
}

/// What one worker said.
#[derive(Clone, Debug)]
pub struct Scraped {
    /// Its status, asked for first: counts of a shard that says it has finished are its last ones.
    pub status: ShardStatus,
    /// Its counts.
    pub snapshot: Snapshot,
}

/// Why a worker gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not answer in time.
    #[error("no answer within {} ms", DEADLINE.as_millis())]
    Timeout,
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
    /// It answered with an error.
    #[error("answered {status}: {message}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// Its message, if it was one of ours.
        message: String,
    },
    /// It answered with more than anyone needs to say.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// Not the JSON of a worker.
    #[error("the answer cannot be read: {0}")]
    NotAStatus(#[from] serde_json::Error),
    /// Not the metrics of a worker.
    #[error(transparent)]
    NotMetrics(#[from] DecodeError),
    /// Another run's worker has this address now.
    #[error("answers for run {0}")]
    AnotherRun(String),
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        // The outer error says only "error sending request"; the cause is at the end of the chain.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        Self::Connection(cause.to_string())
    }
}

impl Scraper {
    /// A scraper with no connection yet.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            // A worker is reached directly, whatever the environment's proxy is, and sends nobody elsewhere.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(DEADLINE)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEEP_IDLE)
            .tcp_nodelay(true)
            .build()?;
        Ok(Self { client, limits: Limits::default() })
    }

    /// Status and counts of one worker.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn scrape(&self, worker: &Endpoint) -> Result<Scraped, Error> {
        tokio::time::timeout(DEADLINE, self.scrape_slowly(worker)).await.map_err(|_| Error::Timeout)?
    }

    async fn scrape_slowly(&self, worker: &Endpoint) -> Result<Scraped, Error> {
        let status: ShardStatus = serde_json::from_slice(&self.get(worker, protocol::STATUS, MAX_ANSWER).await?)?;
        if status.run_id != worker.run_id {
            return Err(Error::AnotherRun(status.run_id.chars().take(63).collect()));
        }
        let exposition = self.get(worker, protocol::METRICS, self.limits.bytes).await?;
        Ok(Scraped { status, snapshot: metrics::decode(&exposition, &self.limits)? })
    }

    async fn get(&self, worker: &Endpoint, path: &str, limit: usize) -> Result<Vec<u8>, Error> {
        let request = self.client.get(format!("{}{path}", worker.base)).bearer_auth(worker.token.expose());
        answer(request.header(header::ACCEPT, PROTOBUF).send().await?, limit).await
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// See [`Error`]; a conflict with an earlier message is [`Error::Refused`] with 409.
    pub async fn post<Body: Serialize + Sync>(&self, worker: &Endpoint, path: &str, body: Option<&Body>) -> Result<(), Error> {
        let mut request = self.client.post(format!("{}{path}", worker.base)).bearer_auth(worker.token.expose());
        if let Some(body) = body {
            request = request.json(body);
        }
        answer(request.send().await?, MAX_ANSWER).await.map(drop)
    }

    /// Asks many workers, a bounded number of them at once; answers come in any order.
    pub async fn round<Key: Send>(
        &self,
        workers: impl IntoIterator<Item = (Key, Endpoint)>,
    ) -> Vec<(Key, Result<Scraped, Error>)> {
        stream::iter(workers)
            .map(|(key, worker)| async move { (key, self.scrape(&worker).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }
}

/// The body of a success, no longer than `limit`.
async fn answer(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, Error> {
    let status = response.status();
    let limit = if status.is_success() { limit } else { MAX_ANSWER };
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Err(Error::TooLong(limit));
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() {
        return Ok(body);
    }
    let message = serde_json::from_slice::<protocol::Problem>(&body).map(|problem| problem.message);
    let message = message.unwrap_or_default().chars().take(500).collect();
    Err(Error::Refused { status, message })
}
