//! The scraping of one run: a task of its own that asks all workers again and again, so that a reconcile never waits for a
//! worker. Its answers are read by the reconcile, which is woken after each round.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{sync::watch, task::JoinHandle, time};

use super::{metrics::Metrics, observe::Scraped};
use crate::scrape::{Endpoint, Error, Memory, Scraper};

/// Whom to ask, and how often.
#[derive(Clone, Debug, Default)]
struct Order {
    workers: BTreeMap<String, Endpoint>,
    every: Duration,
}

/// What the workers have said.
#[derive(Debug, Default)]
struct Answers {
    memory: Memory,
    /// Asked in the last round without an answer.
    silent: HashSet<String>,
    /// Somebody refused the token.
    token_refused: bool,
}

/// The scraping of one run. It ends when this is dropped.
#[derive(Debug)]
pub struct Rounds {
    order: watch::Sender<Order>,
    answers: Arc<Mutex<Answers>>,
    task: JoinHandle<()>,
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Rounds {
    /// Starts with nobody to ask. `done` is called after each round.
    pub fn start(scraper: Scraper, metrics: Arc<Metrics>, done: impl Fn() + Send + Sync + 'static) -> Self {
        let (order, orders) = watch::channel(Order::default());
        let answers = Arc::<Mutex<Answers>>::default();
        let task = tokio::spawn(run(scraper, metrics, orders, answers.clone(), done));
        Self { order, answers, task }
    }

    /// Whom to ask from now on, and how often. Whoever is new is asked at once.
    pub fn ask(&self, workers: BTreeMap<String, Endpoint>, every: Duration) {
        self.order.send_if_modified(|order| {
            let same = order.every == every && order.workers.keys().eq(workers.keys());
            if !same {
                *order = Order { workers, every };
            }
            !same
        });
    }

    /// What is known of a worker.
    pub fn known(&self, uid: &str) -> Option<Scraped> {
        let answers = lock(&self.answers);
        let known = answers.memory.get(uid);
        let silent = answers.silent.contains(uid);
        if known.is_none() && !silent {
            return None;
        }
        Some(Scraped {
            status: known.map(|known| known.status.clone()),
            counts: known.map(|known| known.counts.clone()),
            reachable: Some(!silent),
        })
    }

    /// Whether a worker refused the token.
    pub fn token_refused(&self) -> bool {
        lock(&self.answers).token_refused
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(
    scraper: Scraper,
    metrics: Arc<Metrics>,
    mut orders: watch::Receiver<Order>,
    answers: Arc<Mutex<Answers>>,
    done: impl Fn() + Send + Sync,
) {
    loop {
        let begun = Instant::now();
        let Order { workers, every } = orders.borrow_and_update().clone();
        let open: Vec<(String, Endpoint)> = {
            let answers = lock(&answers);
            workers.into_iter().filter(|(uid, _)| !answers.memory.is_final(uid)).collect()
        };
        if open.is_empty() {
            if orders.changed().await.is_err() {
                return;
            }
            continue;
        }
        let mut silent = HashSet::new();
        let mut token_refused = false;
        let take = |uid: String, answer: Result<_, Error>| {
            if let Err(error) = &answer {
                token_refused |= is_unauthorized(error);
                silent.insert(uid.clone());
            }
            lock(&answers).memory.take(&uid, answer, Timestamp::now());
        };
        scraper.round(open, take).await;
        metrics.scraped(begun.elapsed(), silent.len());
        {
            let mut answers = lock(&answers);
            answers.silent = silent;
            answers.token_refused = token_refused;
        }
        done();
        tokio::select! {
            () = time::sleep(every.saturating_sub(begun.elapsed())) => {}
            changed = orders.changed() => if changed.is_err() { return },
        }
    }
}

fn is_unauthorized(error: &Error) -> bool {
    matches!(error, Error::Refused { status, .. } if status.as_u16() == 401)
}
