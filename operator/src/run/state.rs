//! Where a run is: the part of the status that the state machine lives on. Nothing else is remembered, so an operator that was
//! restarted goes on from the status, the ConfigMaps and the pods themselves.

use jiff::Timestamp;
use mqtt_loadtest_crds::{
    MqttLoadTestStatus,
    status::{MicroTime, Phase, Run, Verdict},
};
use mqtt_loadtest_worker::protocol;

/// Where a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct RunState {
    /// Phase of the run.
    pub phase: Phase,
    /// `<counter>-<hash8>`.
    pub id: String,
    /// Hash of the spec it runs.
    pub spec_hash: String,
    /// Generation of the object whose spec it runs.
    pub generation: i64,
    /// When its objects were first made.
    pub started_at: Option<Timestamp>,
    /// From when clients connect.
    pub released_at: Option<Timestamp>,
    /// From when clients publish.
    pub barrier_at: Option<Timestamp>,
    /// Until when clients publish.
    pub ends_at: Option<Timestamp>,
    /// An early end that was asked for.
    pub stop: Option<StopRequest>,
    /// When the numbers were final; the run has ended when this is set.
    pub completed_at: Option<Timestamp>,
    /// What the run found; set together with `completed_at`.
    pub outcome: Option<Outcome>,
}

/// An early end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// When it was asked for: the window ends here.
    pub at: Timestamp,
    /// Why.
    pub cause: StopCause,
}

/// Why a run was asked to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// `spec.suspend` became true.
    Suspended,
    /// `spec.stopRun` names the run.
    Stopped,
    /// So much was missing that the coverage asked for cannot be reached any more.
    CoverageTooLow,
    /// Someone else took its pods away.
    Preempted,
}

impl StopCause {
    /// All of them.
    const ALL: [Self; 4] = [Self::Suspended, Self::Stopped, Self::CoverageTooLow, Self::Preempted];

    /// The reason in the status.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Suspended => "Suspended",
            Self::Stopped => "Stopped",
            Self::CoverageTooLow => "CoverageTooLow",
            Self::Preempted => "Preempted",
        }
    }

    /// The same in words.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Suspended => "spec.suspend ended the run before its time",
            Self::Stopped => "spec.stopRun ended the run before its time",
            Self::CoverageTooLow => "too much of the load was missing",
            Self::Preempted => "the workers were taken away in mid-run",
        }
    }

    fn of(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.reason() == reason)
    }
}

/// What a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// Why, in words.
    pub message: String,
}

impl Outcome {
    /// An outcome.
    pub fn new(verdict: Verdict, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { verdict, reason: reason.into(), message: message.into() }
    }
}

impl RunState {
    /// A run that has an identity and nothing else.
    pub fn begin(id: String, spec_hash: String, generation: i64) -> Self {
        Self {
            phase: Phase::Pending,
            id,
            spec_hash,
            generation,
            started_at: None,
            released_at: None,
            barrier_at: None,
            ends_at: None,
            stop: None,
            completed_at: None,
            outcome: None,
        }
    }

    /// The newest run that a status tells of.
    ///
    /// Where the status is already about something else than that run (held back, or an invalid spec), its verdict comes from
    /// the history.
    pub fn from_status(status: &MqttLoadTestStatus) -> Option<Self> {
        let run = status.run.as_ref().filter(|run| !run.id.is_empty())?;
        let ended = run.completed_at.is_some();
        let micro = |time: &Option<MicroTime>| time.map(|time| time.0);
        let outcome = match status.verdict {
            Some(verdict) => Some(Outcome::new(verdict, &status.reason, &status.message)),
            None => status
                .history
                .iter()
                .find(|past| ended && past.id == run.id)
                .and_then(|past| past.verdict.map(|verdict| Outcome::new(verdict, &past.reason, ""))),
        };
        let stop = micro(&run.stopped_at).zip(StopCause::of(&run.stop_reason)).map(|(at, cause)| StopRequest { at, cause });
        let mut state = Self {
            phase: Phase::Pending,
            id: run.id.clone(),
            spec_hash: run.spec_hash.clone(),
            generation: run.generation,
            started_at: run.started_at.as_ref().map(|time| time.0),
            released_at: micro(&run.released_at),
            barrier_at: micro(&run.barrier_at),
            ends_at: micro(&run.ends_at),
            stop,
            completed_at: run.completed_at.as_ref().map(|time| time.0),
            outcome: if ended { outcome } else { None },
        };
        state.phase = match status.phase {
            Some(phase) if !ended => phase,
            _ if ended => state.final_phase(),
            _ => Phase::Pending,
        };
        Some(state)
    }

    /// The part of the status that holds this state.
    pub fn to_run(&self) -> Run {
        Run {
            id: self.id.clone(),
            spec_hash: self.spec_hash.clone(),
            generation: self.generation,
            started_at: self.started_at.map(time),
            released_at: self.released_at.map(MicroTime),
            barrier_at: self.barrier_at.map(MicroTime),
            ends_at: self.ends_at.map(MicroTime),
            stopped_at: self.stop.as_ref().map(|stop| MicroTime(stop.at)),
            stop_reason: self.stop.as_ref().map(|stop| stop.cause.reason().to_owned()).unwrap_or_default(),
            completed_at: self.completed_at.map(time),
        }
    }

    /// What the workers read as `run-state.json`.
    pub fn to_protocol(&self) -> protocol::RunState {
        let nanos = |at: Option<Timestamp>| at.and_then(unix_ns);
        protocol::RunState {
            release_unix_ns: nanos(self.released_at),
            start_unix_ns: nanos(self.barrier_at),
            end_unix_ns: nanos(self.ends_at),
            stop: self.stop.as_ref().map(|stop| stop.cause.reason().to_owned()),
        }
    }

    /// Whether the run has ended: only the teardown is left.
    pub fn ended(&self) -> bool {
        self.completed_at.is_some()
    }

    /// When publishing ended or will end: the planned end, or the instant of an early stop.
    pub fn window_end(&self) -> Option<Timestamp> {
        let end = self.ends_at?;
        Some(self.stop.as_ref().map_or(end, |stop| stop.at.min(end)))
    }

    /// How much of the window has passed, in nanoseconds.
    pub fn elapsed_ns(&self, now: Timestamp) -> u64 {
        let (Some(start), Some(end)) = (self.barrier_at, self.window_end()) else { return 0 };
        u64::try_from(now.min(end).as_nanosecond() - start.as_nanosecond()).unwrap_or(0)
    }

    /// The phase in which the run ends: whether its measured window ended too.
    pub fn final_phase(&self) -> Phase {
        match (self.ends_at, self.completed_at) {
            (Some(end), Some(completed)) if self.stop.is_none() && second(completed) >= second(end) => Phase::Completed,
            _ => Phase::Failed,
        }
    }
}

/// `completedAt` is stored in whole seconds.
fn second(at: Timestamp) -> i64 {
    at.as_second()
}

fn time(at: Timestamp) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at)
}

/// Nanoseconds since the Unix epoch, as they travel to the workers.
pub fn unix_ns(at: Timestamp) -> Option<u64> {
    u64::try_from(at.as_nanosecond()).ok()
}
