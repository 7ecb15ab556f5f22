//! Waiting for what a cluster does in its own time, always with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Api;
use serde::de::DeserializeOwned;

/// Asks every 100 ms until there is an answer.
///
/// # Errors
/// After `deadline`, naming `what` was waited for and the last error that `ask` gave. A single error of `ask` ends
/// nothing: API servers restart and pods come late.
pub async fn eventually<T>(what: &str, deadline: Duration, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        let answer = tokio::time::timeout(deadline.saturating_sub(started.elapsed()), ask()).await;
        let problem = match answer {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(anyhow::anyhow!("the last question was not answered in time")),
        };
        if started.elapsed() >= deadline {
            return match problem {
                Some(error) => Err(error).with_context(|| format!("waited {deadline:?} for {what}")),
                None => bail!("waited {deadline:?} for {what}, in vain"),
            };
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until no object of this kind and name is there.
///
/// # Errors
/// When it is still there after `deadline`.
pub async fn is_gone<K>(api: &Api<K>, name: &str, deadline: Duration) -> Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    eventually(&format!("{name} to be gone"), deadline, async || Ok(api.get_opt(name).await?.is_none().then_some(()))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_on_the_way_does_not_end_the_wait() {
        let mut asked = 0;
        let answer = eventually("three", Duration::from_secs(5), async || {
            asked += 1;
            match asked {
                1 => bail!("not yet there"),
                2 => Ok(None),
                n => Ok(Some(n)),
            }
        })
        .await;
        assert_eq!(answer.expect("an answer"), 3);
    }

    #[tokio::test]
    async fn a_wait_ends_at_its_deadline_though_the_question_hangs() {
        let hung = eventually("ever", Duration::from_millis(200), async || {
            std::future::pending::<()>().await;
            Ok(Some(()))
        });
        let text = format!("{:?}", hung.await.expect_err("nothing comes"));
        assert!(text.contains("ever"), "{text}");
    }
}
