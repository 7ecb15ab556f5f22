//! Talking to the workers of a run: collecting their status and counts, and telling them what to do. Both runtimes use it.
//!
//! A worker may hang or lie: every exchange has a deadline, answers have bounds and are validated before anything is believed,
//! and a round over any number of workers keeps only so many in flight that hanging ones cannot hold up the rest for long.

mod control;
mod memory;

pub use control::deliver;
pub use memory::{Memory, Remembered};

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use mqtt_loadtest_worker::{
    accounting::{
        Snapshot,
        metrics::{self, DecodeError, Limits},
    },
    protocol::{self, STATUS_HEADER, ShardStatus, Token},
};
use serde::Serialize;

/// Longest exchange with one worker: 1,000 workers of which 100 hang are asked within 2 s.
const DEADLINE: Duration = Duration::from_millis(500);
/// Workers that are asked at once.
const AT_ONCE: usize = 256;
/// Longest answer that is not an exposition: a status, or a problem.
const MAX_ANSWER: usize = 16 * 1024;
/// Longest head of an answer; and what a connection may keep in memory while nothing is asked.
const BUFFER: usize = 16 * 1024;
/// How long an unused connection is kept: longer than the longest pause between two rounds.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

/// A client for the workers' control ports; one for the whole process, as it pools its connections.
///
/// A worker is reached directly, whatever the environment's proxy is, and sends nobody elsewhere.
#[derive(Clone, Debug)]
pub struct Scraper {
    client: Client<HttpConnector, Full<Bytes>>,
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
    /// Its status, taken before the counts: those of a shard that says it has finished are its last ones.
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
    /// Not the status of a worker.
    #[error("the status cannot be read: {0}")]
    NotAStatus(String),
    /// Not the metrics of a worker.
    #[error(transparent)]
    NotMetrics(#[from] DecodeError),
    /// Another run's worker has this address now.
    #[error("answers for run {0}")]
    AnotherRun(String),
}

/// The outer error says only that sending failed; the cause is at the end of the chain.
fn connection(error: &dyn std::error::Error) -> Error {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Error::Connection(cause.to_string())
}

impl Default for Scraper {
    fn default() -> Self {
        Self::new()
    }
}

impl Scraper {
    /// A scraper with no connection yet.
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEEP_IDLE)
            .http1_max_buf_size(BUFFER)
            .build(connector);
        Self { client, limits: Limits::default() }
    }

    /// Status and counts of one worker.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn scrape(&self, worker: &Endpoint) -> Result<Scraped, Error> {
        let response = self.exchange(worker, Method::GET, protocol::METRICS, Bytes::new(), self.limits.bytes).await?;
        let missing = || Error::NotAStatus(format!("the answer has no {STATUS_HEADER}: is this a worker of the same version?"));
        let status = response.headers().get(STATUS_HEADER).ok_or_else(missing)?.as_bytes();
        let status: ShardStatus = serde_json::from_slice(status).map_err(|error| Error::NotAStatus(error.to_string()))?;
        if status.run_id != worker.run_id {
            return Err(Error::AnotherRun(status.run_id.chars().take(63).collect()));
        }
        Ok(Scraped { status, snapshot: metrics::decode(response.body(), &self.limits)? })
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// See [`Error`]; a conflict with an earlier message is [`Error::Refused`] with 409.
    pub async fn post<Body: Serialize + Sync>(&self, worker: &Endpoint, path: &str, body: Option<&Body>) -> Result<(), Error> {
        // Bodies are a few numbers, and numbers serialize.
        let body = body.and_then(|body| serde_json::to_vec(body).ok()).unwrap_or_default();
        self.exchange(worker, Method::POST, path, body.into(), MAX_ANSWER).await.map(drop)
    }

    /// Asks many workers, a bounded number of them at once, and gives each answer to `take` as it comes.
    pub async fn round<Key: Send>(
        &self,
        workers: impl IntoIterator<Item = (Key, Endpoint)>,
        mut take: impl FnMut(Key, Result<Scraped, Error>),
    ) {
        let mut answers =
            stream::iter(workers).map(|(key, worker)| async move { (key, self.scrape(&worker).await) }).buffer_unordered(AT_ONCE);
        while let Some((key, answer)) = answers.next().await {
            take(key, answer);
        }
    }

    /// One request and the whole answer to it, within the deadline.
    async fn exchange(
        &self,
        worker: &Endpoint,
        method: Method,
        path: &str,
        body: Bytes,
        limit: usize,
    ) -> Result<Response<Bytes>, Error> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", worker.base))
            .header(header::AUTHORIZATION, format!("Bearer {}", worker.token.expose()))
            .header(header::ACCEPT, PROTOBUF)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| connection(&error))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| connection(&error))?;
            answer(response, limit).await
        };
        tokio::time::timeout(DEADLINE, exchange).await.map_err(|_| Error::Timeout)?
    }
}

/// A success with its body, which is no longer than `limit`.
async fn answer(response: Response<Incoming>, limit: usize) -> Result<Response<Bytes>, Error> {
    let (head, body) = response.into_parts();
    let status = head.status;
    let limit = if status.is_success() { limit } else { MAX_ANSWER };
    let body = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(Error::TooLong(limit)),
        Err(error) => return Err(connection(error.as_ref())),
    };
    if status.is_success() {
        return Ok(Response::from_parts(head, body));
    }
    let message = serde_json::from_slice::<protocol::Problem>(&body).map(|problem| problem.message);
    let message = message.unwrap_or_default().chars().take(500).collect();
    Err(Error::Refused { status, message })
}
