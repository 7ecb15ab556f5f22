//! The operator's own HTTP: `/healthz`, `/readyz` and `/metrics`, nothing else.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use axum::{Router, extract::State, http::StatusCode, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};
use tokio::net::TcpListener;
use tracing::warn;

use super::{health::Health, metrics::Metrics};

#[derive(Clone)]
struct Served {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    refresh: Arc<dyn Fn() + Send + Sync>,
}

/// Serves until the process ends. `refresh` is called before the metrics are read.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    refresh: Arc<dyn Fn() + Send + Sync>,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    axum::serve(listener, router(Served { health, metrics, refresh })).await
}

fn router(served: Served) -> Router {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).route("/metrics", get(metrics)).with_state(served)
}

async fn healthz(State(served): State<Served>) -> impl IntoResponse {
    match served.health.stuck(Instant::now()) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(kind) => {
            warn!(?kind, "a watch does not show what was written; the process must be restarted");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the watch of {kind:?} is stuck\n"))
        }
    }
}

async fn readyz(State(served): State<Served>) -> impl IntoResponse {
    if served.health.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the lease or the watches are not there yet\n")
    }
}

async fn metrics(State(served): State<Served>) -> impl IntoResponse {
    (served.refresh)();
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], served.metrics.encode())
}
