//! A record of the pods of a test's namespace, kept by a watch of the test's own: what was in a pod's status is still known
//! when the pod is long deleted, its termination message above all.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::task::AbortHandle;

use crate::TestBed;

/// The recording; it ends when this is dropped.
pub struct PodRecorder {
    pods: Arc<Mutex<BTreeMap<String, Pod>>>,
    watch: AbortHandle,
}

/// How a pod's first container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedPod {
    /// The pod.
    pub name: String,
    /// The Job's completion index, where it is of an Indexed Job.
    pub index: Option<u32>,
    /// The container's exit status.
    pub exit_code: i32,
    /// Such as `Completed`, `Error`, `OOMKilled`.
    pub reason: String,
    /// What it wrote to `/dev/termination-log`.
    pub message: String,
}

impl PodRecorder {
    /// Records from now on.
    #[must_use]
    pub fn start(bed: &TestBed) -> Self {
        let pods = Arc::new(Mutex::new(BTreeMap::new()));
        let (record, api) = (Arc::clone(&pods), bed.api::<Pod>());
        let watch = tokio::spawn(async move {
            // The watch starts anew after an error, with all pods that are there then.
            let mut seen = pin!(watcher(api, watcher::Config::default()).default_backoff().touched_objects());
            loop {
                match seen.try_next().await {
                    Ok(Some(pod)) => {
                        let pod: Pod = pod;
                        record.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.uid().unwrap_or_default(), pod);
                    }
                    Ok(None) => break,
                    Err(_) => {}
                }
            }
        });
        Self { pods, watch: watch.abort_handle() }
    }

    /// All pods seen, each as it was last.
    #[must_use]
    pub fn pods(&self) -> Vec<Pod> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Those whose container was seen to end, in no particular order.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedPod> {
        self.pods().iter().filter_map(ended).collect()
    }
}

impl Drop for PodRecorder {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn ended(pod: &Pod) -> Option<EndedPod> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let terminated = container.state.as_ref()?.terminated.as_ref()?;
    let index = pod.annotations().get("batch.kubernetes.io/job-completion-index");
    Some(EndedPod {
        name: pod.name_any(),
        index: index.and_then(|index| index.parse().ok()),
        exit_code: terminated.exit_code,
        reason: terminated.reason.clone().unwrap_or_default(),
        message: terminated.message.clone().unwrap_or_default(),
    })
}
