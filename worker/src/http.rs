//! The worker's HTTP server: probes, metrics and the control messages of [`crate::protocol`].

use crate::accounting::metrics::{self, Format};
use crate::protocol::{self, Problem, Release, Start, Stop, Token};
use crate::shard::{Conflict, Shard};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use std::sync::Arc;

/// Bodies are a few numbers.
const MAX_BODY: usize = 4096;

/// The routes of one shard. Everything but the probes needs the token.
pub fn router(shard: Arc<Shard>, token: Token) -> Router {
    let guarded = Router::new()
        .route(protocol::METRICS, get(metrics))
        .route(protocol::RELEASE, post(release))
        .route(protocol::START, post(start))
        .route(protocol::STOP, post(stop))
        .route(protocol::FINISH, post(finish))
        .route(protocol::STATUS, get(status))
        .layer(middleware::from_fn_with_state(Arc::new(token), authorize))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shard);
    // The process serves only after its plan was read and its threads were started, so both probes say yes.
    Router::new()
        .route(protocol::HEALTHZ, get(|| async { "ok" }))
        .route(protocol::READYZ, get(|| async { "ready" }))
        .merge(guarded)
}

async fn authorize(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if token.admits(given) {
        return next.run(request).await;
    }
    problem(StatusCode::UNAUTHORIZED, "this needs the bearer token of the run")
}

fn problem(status: StatusCode, message: &str) -> Response {
    (status, Json(Problem { message: message.to_owned() })).into_response()
}

async fn metrics(State(shard): State<Arc<Shard>>, headers: HeaderMap) -> Response {
    let format = Format::negotiate(headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()));
    // Before the counts, see [`protocol::STATUS_HEADER`].
    let status = serde_json::to_vec(&shard.status()).ok().and_then(|json| HeaderValue::from_bytes(&json).ok());
    let Some(snapshot) = shard.snapshot().await else {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "the event loops did not answer in time: the worker is overloaded");
    };
    match metrics::encode(snapshot, &shard.labels(), format) {
        Ok(body) => {
            let mut response = ([(header::CONTENT_TYPE, format.content_type())], body).into_response();
            if let Some(status) = status {
                response.headers_mut().insert(protocol::STATUS_HEADER, status);
            }
            response
        }
        Err(_) => problem(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded"),
    }
}

fn agreed(result: Result<(), Conflict>, what: &str) -> Response {
    match result {
        Ok(()) => StatusCode::OK.into_response(),
        Err(Conflict) => {
            problem(StatusCode::CONFLICT, &format!("this shard has another {what} already, and the first one counts"))
        }
    }
}

async fn release(State(shard): State<Arc<Shard>>, Json(release): Json<Release>) -> Response {
    agreed(shard.release(release.at_unix_ns), "release")
}

async fn start(State(shard): State<Arc<Shard>>, Json(start): Json<Start>) -> Response {
    if start.end_unix_ns <= start.start_unix_ns {
        return problem(StatusCode::BAD_REQUEST, "endUnixNs must be after startUnixNs");
    }
    agreed(shard.start(start), "start")
}

async fn stop(State(shard): State<Arc<Shard>>, Json(stop): Json<Stop>) -> StatusCode {
    shard.stop(&stop.reason);
    StatusCode::OK
}

async fn finish(State(shard): State<Arc<Shard>>) -> StatusCode {
    shard.finish();
    StatusCode::OK
}

async fn status(State(shard): State<Arc<Shard>>) -> Json<protocol::ShardStatus> {
    Json(shard.status())
}
