//! The state machine against a broker that is a few lines of code: random losses, refusals, full sockets and silence, and
//! at the end every law must close.

use super::*;
use crate::accounting::header::Header;
use crate::accounting::laws;
use crate::engine::run::Window;
use crate::engine::secrets::Secrets;
use mqtt_loadtest_crds::plan::{RunIdentity, RunPlan};
use proptest::prelude::*;
use serde_json::json;
use std::collections::HashSet;

const MS: u64 = 1_000_000;
const START: u64 = 1_000 * SECOND;

fn plan(protocol: &str, publish: serde_json::Value, subscribe: serde_json::Value, more: serde_json::Value) -> ShardPlan {
    let mut group = json!({"name": "g", "clients": 1, "publish": publish, "subscribe": subscribe, "keepAlive": "10s"});
    group.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec = json!({"broker": {"endpoints": ["mqtt://b"], "protocolVersion": protocol}, "groups": [group]});
    let run = RunIdentity { namespace: String::new(), name: "t".into(), uid: "u".into(), id: "1".into() };
    ShardPlan::new(&RunPlan::new(run, serde_json::from_value(spec).unwrap()), 0, 0, 0, &Secrets::default()).unwrap()
}

fn entry(qos: u8, interval_ms: u64) -> serde_json::Value {
    json!({"name": format!("q{qos}"), "topic": "t/%i", "qos": qos, "payload": {"size": 40}, "interval": format!("{interval_ms}ms")})
}

/// One client, a broker, and the wire between them.
struct Sim {
    plan: ShardPlan,
    client: Client,
    run: Run,
    counts: Snapshot,
    streams: Streams,
    losses: Losses,
    out: Vec<u8>,
    marks: Vec<Mark>,
    random: u64,
    now: u64,
    connected: bool,
    /// What the kernel has not taken yet.
    waiting: Vec<u8>,
    /// How many bytes the kernel takes before it is full.
    room: usize,
    /// The kernel has said so.
    full: bool,
    /// Bytes on the way to the broker, not yet whole packets.
    to_broker: Vec<u8>,
    /// The broker's answers that wait to be delivered.
    answers: Vec<Vec<u8>>,
    keeps_session: bool,
    puback_reason: u8,
    /// Messages that the broker has seen without DUP, and all it has seen.
    first: u64,
    seen: HashSet<(u8, u32)>,
}

impl Sim {
    fn new(plan: ShardPlan) -> Sim {
        let client = Client::new(&plan, 0);
        let run = Run { stage: RunStage::Active, release: START, window: None };
        Sim {
            plan,
            client,
            run,
            counts: Snapshot::new(),
            streams: Streams::default(),
            losses: Losses::new(1),
            out: Vec::new(),
            marks: Vec::new(),
            random: 1,
            now: START,
            connected: false,
            waiting: Vec::new(),
            room: usize::MAX,
            full: false,
            to_broker: Vec::new(),
            answers: Vec::new(),
            keeps_session: false,
            puback_reason: 0,
            first: 0,
            seen: HashSet::new(),
        }
    }

    fn with<T>(&mut self, body: impl FnOnce(&mut Client, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx {
            plan: &self.plan,
            run: &self.run,
            counts: &mut self.counts,
            streams: &mut self.streams,
            losses: &mut self.losses,
            out: &mut self.out,
            marks: &mut self.marks,
            random: &mut self.random,
            now: self.now,
        };
        body(&mut self.client, &mut cx)
    }

    fn lose(&mut self, cause: Cause) {
        (self.connected, self.full, self.room) = (false, false, usize::MAX);
        (self.waiting, self.to_broker, self.answers) = Default::default();
        self.out.clear();
        self.marks.clear();
        self.with(|client, cx| client.on_lost(cause, cx));
    }

    fn obey(&mut self, directive: Directive) {
        match directive {
            Directive::Continue | Directive::Leave => self.pump(),
            Directive::Open => {
                self.connected = true;
                self.with(|client, cx| client.on_open(cx));
                self.pump();
            }
            Directive::Close(cause) => self.lose(cause),
        }
    }

    fn pump(&mut self) {
        loop {
            let writable = self.connected && !self.full;
            self.with(|client, cx| client.fill(writable, cx));
            if self.out.is_empty() {
                return;
            }
            self.write();
        }
    }

    /// What a thread's flush does, with a kernel that has `room`.
    fn write(&mut self) {
        let waiting = self.full || !self.waiting.is_empty();
        if waiting {
            let out = std::mem::take(&mut self.out);
            self.waiting.extend(out);
            if self.full {
                return;
            }
        }
        let bytes = if waiting { self.waiting.clone() } else { self.out.clone() };
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        self.full = taken < bytes.len();
        self.to_broker.extend_from_slice(&bytes[..taken]);
        if taken > 0 {
            self.client.on_written(self.now);
        }
        if waiting {
            self.waiting.drain(..taken);
            self.with(|client, cx| client.on_rest_sent(taken, cx));
        } else {
            let marks = std::mem::take(&mut self.marks);
            let sent = marks.iter().take_while(|m| m.end as usize <= taken).count();
            self.with(|client, cx| marks[..sent].iter().for_each(|mark| client.on_sent(mark, cx)));
            if taken < bytes.len() {
                let cut = marks.get(sent).filter(|m| (m.start as usize) < taken);
                let unsent = &marks[sent + usize::from(cut.is_some())..];
                let keep = unsent.first().map_or(bytes.len(), |m| m.start as usize);
                self.with(|client, cx| {
                    unsent.iter().rev().for_each(|mark| client.on_unsent(mark, cx));
                    client.on_socket_full(cut.map(std::slice::from_ref).unwrap_or_default(), taken, cx);
                });
                self.waiting = bytes[taken..keep].to_vec();
            }
        }
        self.out.clear();
        self.broker();
    }

    /// The broker reads whole packets and prepares its answers.
    fn broker(&mut self) {
        while let Some(frame) = wire::frame(&self.to_broker).unwrap() {
            let v5 = self.plan.version == Version::V5;
            let body = frame.body;
            let answer = match frame.first >> 4 {
                1 => {
                    let present = u8::from(self.keeps_session && self.client.was_connected);
                    if v5 { vec![0x20, 3, present, 0, 0] } else { vec![0x20, 2, present, 0] }
                }
                3 => {
                    let publish = wire::Publish::read(frame.first, body, self.plan.version).unwrap();
                    let header = publish.header(self.plan.run_tag).unwrap();
                    let known = !self.seen.insert((header.entry, header.seq));
                    assert!(!known || frame.first & 8 != 0, "a message is new only once");
                    self.first += u64::from(frame.first & 8 == 0);
                    let [high, low] = publish.packet_id.to_be_bytes();
                    match publish.qos {
                        0 => vec![],
                        1 if v5 => vec![0x40, 3, high, low, self.puback_reason],
                        1 => vec![0x40, 2, high, low],
                        _ => vec![0x50, 2, high, low],
                    }
                }
                6 => vec![0x70, 2, body[0], body[1]],
                8 if v5 => vec![0x90, 4, body[0], body[1], 0, body[body.len() - 1] & 3],
                8 => vec![0x90, 3, body[0], body[1], body[body.len() - 1] & 3],
                12 => vec![0xd0, 0],
                _ => vec![],
            };
            let size = frame.size;
            self.to_broker.drain(..size);
            if !answer.is_empty() {
                self.answers.push(answer);
            }
        }
    }

    fn deliver(&mut self, most: usize) {
        for _ in 0..most {
            if self.answers.is_empty() {
                return;
            }
            let bytes = self.answers.remove(0);
            let result = self.with(|client, cx| client.on_bytes(&bytes, cx));
            match result {
                Ok(used) => assert_eq!(used, bytes.len()),
                Err(cause) => return self.lose(cause),
            }
            self.pump();
        }
    }

    /// Lets time pass, firing the client's timer when it wants.
    fn pass(&mut self, time: u64) {
        let until = self.now + time;
        for _ in 0..100_000 {
            let at = self.with(|client, cx| client.deadline(cx));
            if at > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(at);
            let directive = self.with(|client, cx| client.on_timer(cx));
            self.obey(directive);
            let next = self.with(|client, cx| client.deadline(cx));
            assert!(next > self.now, "a deadline that is not after the instant it was handled: {next} at {}", self.now);
        }
        panic!("the timer fires without end");
    }

    /// Lets time pass in which the broker answers.
    fn live(&mut self, time: u64) {
        for _ in 0..time / (50 * MS) {
            self.pass(50 * MS);
            self.deliver(99);
        }
    }

    fn start(&mut self, length: u64) {
        self.run.window = Some(Window { start: self.now, end: self.now + length, start_unix: 5 * SECOND });
        self.with(|client, cx| client.on_window(cx));
        self.pump();
    }

    fn unblock(&mut self) {
        self.room = usize::MAX;
        self.full = false;
        if !self.waiting.is_empty() && self.connected {
            self.write();
        }
        self.pump();
    }

    fn report(&mut self) -> Snapshot {
        let mut open = Open::default();
        self.with(|client, cx| client.report(cx, &mut open));
        let mut snapshot = self.counts.clone();
        open.apply(&mut snapshot);
        snapshot
    }

    fn assert_laws(&mut self) {
        let snapshot = self.report();
        let open: Vec<_> = laws::residuals(&snapshot).into_iter().filter(|r| r.residual != 0).collect();
        assert!(open.is_empty(), "{open:?}");
    }

    fn connect(&mut self) {
        self.pass(1);
        self.deliver(9);
        assert_eq!(self.client.phase(), Phase::Ready);
    }
}

#[test]
fn a_client_publishes_at_the_instants_of_the_formula_and_fences_qos_0_at_the_end() {
    let mut sim = Sim::new(plan("5", json!([entry(0, 100)]), json!([]), json!({})));
    sim.connect();
    sim.start(SECOND);
    sim.pass(450 * MS);
    assert_eq!(sim.first, 5, "at 0, 100, 200, 300 and 400 ms");
    sim.pass(SECOND);
    assert_eq!(sim.first, 10);
    assert_eq!(sim.report().get(Counter::Fenced), 0);
    sim.deliver(1);
    assert_eq!(sim.report().get(Counter::Fenced), 10);
    sim.assert_laws();
}

#[test]
fn a_full_window_holds_slots_back_and_skips_them_after_max_behind() {
    let mut sim = Sim::new(plan("5", json!([entry(1, 100)]), json!([]), json!({"maxInflight": 2})));
    sim.connect();
    sim.start(10 * SECOND);
    sim.pass(950 * MS);
    assert_eq!(sim.first, 2);
    assert_eq!(sim.report().gauge(Gauge::Pending), 8);
    sim.pass(1_000 * MS);
    let s = sim.report();
    // 20 slots are due; those older than 1 s and not sent (at 200 to 900 ms) are skipped.
    assert_eq!((s.get(Counter::SkippedWindowFull), s.gauge(Gauge::Pending)), (8, 10));
    sim.deliver(2);
    assert_eq!(sim.first, 4, "the oldest slots that are still due go first");
    sim.assert_laws();
}

#[test]
fn slots_before_the_first_connection_are_absent_and_those_after_a_loss_are_skipped() {
    let mut sim = Sim::new(plan("3.1.1", json!([entry(1, 100)]), json!([]), json!({})));
    sim.start(10 * SECOND);
    sim.now += 450 * MS;
    sim.connect();
    assert_eq!(sim.report().get(Counter::Absent), 5);
    sim.pass(300 * MS);
    assert_eq!(sim.first, 3, "at 500, 600 and 700 ms");
    sim.lose(Cause::Reset);
    sim.now += 10 * SECOND;
    let s = sim.report();
    assert_eq!((s.get(Counter::SkippedDisconnected), s.get(Counter::Absent)), (92, 5));
    sim.assert_laws();
}

#[test]
fn a_kept_session_resends_with_dup_and_a_lost_one_abandons() {
    for keeps in [true, false] {
        for qos in [1, 2] {
            let mut sim = Sim::new(plan("5", json!([entry(qos, 100)]), json!([]), json!({"cleanStart": false})));
            sim.connect();
            sim.start(SECOND);
            sim.pass(250 * MS);
            assert_eq!(sim.client.unacked(), 3);
            sim.keeps_session = keeps;
            sim.lose(Cause::ClosedByPeer);
            while sim.client.phase() != Phase::Ready {
                sim.pass(100 * MS);
                sim.deliver(100);
            }
            sim.deliver(100);
            let s = sim.report();
            let expected = if keeps { (3, 0, 3) } else { (0, 3, 0) };
            assert_eq!((s.get(Counter::Retransmitted), s.get(Counter::Abandoned), s.get(Counter::Acked)), expected);
            assert_eq!(sim.first, 3);
            sim.assert_laws();
        }
    }
}

#[test]
fn silence_is_answered_with_a_ping_and_then_with_a_close() {
    let mut sim = Sim::new(plan("3.1.1", json!([]), json!([{"name": "s", "filter": "t"}]), json!({})));
    sim.connect();
    sim.pass(8_900 * MS);
    assert!(sim.answers.is_empty());
    sim.pass(200 * MS);
    assert_eq!(sim.answers, [vec![0xd0, 0]], "nine tenths of the keep alive have passed");
    sim.deliver(1);
    sim.pass(9_100 * MS);
    sim.pass(5 * SECOND);
    assert_eq!(sim.report().get(Counter::DisconnectKeepAlive), 1);
    assert_eq!(sim.client.phase(), Phase::Backoff);
}

#[test]
fn refusals_are_counted_by_reason_and_incurable_ones_end_the_client() {
    for (connack, counter, gone) in [
        (vec![0x20, 2, 0, 5], Counter::ConnectNotAuthorized, true),
        (vec![0x20, 2, 0, 4], Counter::ConnectBadUserNameOrPassword, true),
        (vec![0x20, 2, 0, 2], Counter::ConnectIdentifierRejected, true),
        (vec![0x20, 2, 0, 3], Counter::ConnectServerUnavailable, false),
        (vec![0x20, 2, 0, 77], Counter::ConnectProtocolError, false),
        (vec![0x15, 3, 1, 0, 2, 2, 70], Counter::ConnectPlainOnTlsPort, true),
        (vec![0x30, 2, 0, 0], Counter::ConnectProtocolError, false),
        (b"HTTP/1.1 400 Bad Request".to_vec(), Counter::ConnectProtocolError, false),
    ] {
        let mut sim = Sim::new(plan("3.1.1", json!([]), json!([]), json!({})));
        sim.pass(1);
        sim.answers = vec![connack.clone()];
        let result = sim.with(|client, cx| client.on_bytes(&connack, cx));
        sim.lose(result.unwrap_err());
        assert_eq!(sim.counts.by_label("connects_failed"), [(counter.name(), 1)], "{connack:?}");
        assert_eq!(sim.client.settled(), gone);
    }
}

#[test]
fn a_taken_over_session_is_never_fought_for() {
    let mut sim = Sim::new(plan("5", json!([]), json!([]), json!({})));
    sim.connect();
    sim.answers = vec![vec![0xe0, 2, 0x8e, 0]];
    sim.deliver(1);
    assert_eq!(sim.counts.by_label("disconnects"), [("sessionTakenOver", 1)]);
    assert_eq!(sim.client.phase(), Phase::Gone);
}

#[test]
fn a_client_that_is_closed_again_and_again_without_a_word_gives_its_identifier_up() {
    let mut sim = Sim::new(plan("3.1.1", json!([]), json!([{"name": "s", "filter": "t"}]), json!({})));
    sim.connect();
    sim.live(30 * SECOND);
    for disconnects in 1..=4 {
        sim.lose(Cause::ClosedByPeer);
        assert_eq!(sim.counts.total("disconnects"), disconnects);
        sim.live(2 * SECOND);
    }
    assert_eq!(sim.counts.by_label("disconnects"), [("closedByPeer", 3), ("sessionTakenOver", 1)]);
    assert_eq!((sim.client.phase(), sim.counts.gauge(Gauge::ClientsFailed)), (Phase::Gone, 1));
}

/// A client that hears a message a second, is away for a while, and comes back; what it is excused of on the way.
fn excused(clean: bool, qos: u8) -> [u64; 4] {
    let subscribe = json!([{"name": "s", "filter": "t/#", "qos": qos}]);
    let mut publish = entry(qos, 1000);
    publish["maxBehind"] = json!("0s");
    let more = json!({"cleanStart": clean, "clients": 10, "shards": {"count": 10}});
    let mut sim = Sim::new(plan("3.1.1", json!([publish]), subscribe, more));
    sim.keeps_session = !clean;
    sim.connect();
    sim.live(10 * SECOND);
    sim.start(100 * SECOND);
    let before = sim.report().get(Counter::Excused);
    sim.live(20 * SECOND);
    let connected = sim.report().get(Counter::Excused);
    sim.lose(Cause::Reset);
    // No reconnect yet: what was on its way, and what is due meanwhile.
    sim.now += 2 * SECOND;
    let away = sim.report().get(Counter::Excused);
    while sim.client.phase() != Phase::Ready {
        sim.live(50 * MS);
    }
    let back = sim.report().get(Counter::Excused);
    sim.live(50 * SECOND);
    assert_eq!(sim.report().get(Counter::Excused), back, "nothing more once it is back");
    [before, connected, away, back]
}

#[test]
fn a_clean_session_is_excused_of_what_is_due_while_it_is_away_and_until_it_has_settled() {
    let [before, connected, away, back] = excused(true, 1);
    assert_eq!((before, connected), (0, 0));
    assert!((20..=21).contains(&away), "ten messages a second for 2 s: {away}");
    // The reconnect follows at once, then 5 s of settling.
    assert!((70..=72).contains(&back), "{back}");
}

#[test]
fn a_kept_session_is_excused_of_messages_at_qos_0_only() {
    assert_eq!(excused(false, 1), [0; 4]);
    let [_, connected, away, _] = excused(false, 0);
    assert!(connected == 0 && (20..=31).contains(&away), "{away}");
}

#[test]
fn a_subscriber_that_comes_late_is_excused_of_what_was_due_before() {
    let subscribe = json!([{"name": "s", "filter": "t/#", "qos": 1}]);
    let mut sim = Sim::new(plan("5", json!([entry(1, 1000)]), subscribe, json!({})));
    sim.start(100 * SECOND);
    sim.now += 9_500 * MS;
    assert_eq!(sim.report().get(Counter::Excused), 10);
    sim.connect();
    assert_eq!(sim.report().get(Counter::Excused), 15, "and of five more while routes settle");
    sim.live(20 * SECOND);
    assert_eq!(sim.report().get(Counter::Excused), 15);
}

#[test]
fn a_lower_granted_qos_is_not_subscribed() {
    let mut sim = Sim::new(plan("5", json!([]), json!([{"name": "s", "filter": "t", "qos": 2}]), json!({})));
    sim.pass(1);
    sim.deliver(1);
    sim.answers = vec![vec![0x90, 4, 0, 1, 0, 1]];
    sim.deliver(1);
    assert_eq!(sim.counts.by_label("subscribes_failed"), [("lowerQosGranted", 1)]);
    assert!(sim.client.settled() && sim.client.phase() == Phase::Gone);
}

#[test]
fn qos_2_deliveries_are_acknowledged_in_four_steps_and_counted_once() {
    let mut sim = Sim::new(plan("3.1.1", json!([entry(2, 1000)]), json!([{"name": "s", "filter": "t/0", "qos": 2}]), json!({})));
    sim.connect();
    sim.start(10 * SECOND);
    let header = Header { entry: 0, attempt: 0, run_tag: sim.plan.run_tag, client: 9, seq: 0, due_unix_ns: 5 * SECOND };
    let mut publish = vec![0x34, 2 + 3 + 2 + 40, 0, 3, b't', b'/', b'0', 0, 7];
    publish.extend_from_slice(&header.encode());
    publish.extend_from_slice(&[b'x'; 16]);
    let mut again = publish.clone();
    again[0] |= 8;
    for (bytes, received) in [(&publish, 1), (&again, 1), (&vec![0x62, 2, 0, 7], 1), (&vec![0x62, 2, 0, 7], 1), (&again, 2)] {
        assert_eq!(sim.with(|client, cx| client.on_bytes(bytes, cx)), Ok(bytes.len()));
        assert_eq!(sim.counts.get(Counter::Received), received);
    }
    // PUBREC, PUBREC, PUBCOMP, PUBCOMP, PUBREC
    assert_eq!(sim.out, [0x50, 2, 0, 7, 0x50, 2, 0, 7, 0x70, 2, 0, 7, 0x70, 2, 0, 7, 0x50, 2, 0, 7]);
    assert_eq!((sim.counts.get(Counter::Unique), sim.counts.get(Counter::DuplicatesQos2)), (1, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Deliver(usize),
    Lose,
    Room(usize),
    Unblock,
    KeepSession(bool),
    Reason(u8),
    Shorten,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u64..800).prop_map(|ms| Step::Pass(ms * MS)),
        1 => (1u64..20).prop_map(|s| Step::Pass(s * SECOND)),
        8 => (1usize..12).prop_map(Step::Deliver),
        1 => Just(Step::Lose),
        2 => (0usize..300).prop_map(Step::Room),
        2 => Just(Step::Unblock),
        1 => any::<bool>().prop_map(Step::KeepSession),
        1 => prop_oneof![Just(0u8), Just(0x10), Just(0x97)].prop_map(Step::Reason),
        1 => Just(Step::Shorten),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_happens_every_law_closes_and_the_broker_agrees(
        steps in steps(), v5: bool, mix in 0usize..5, clean: bool, window in 1u64..6, reconnects in prop_oneof![4 => Just("Always"), 1 => Just("Never")],
    ) {
        let publish = [
            json!([entry(0, 70)]),
            json!([entry(1, 90)]),
            json!([entry(2, 110)]),
            json!([entry(0, 150), entry(1, 130), entry(2, 170)]),
            json!([entry(1, 50), entry(2, 50)]),
        ][mix].clone();
        let more = json!({"maxInflight": window, "cleanStart": clean, "reconnect": {"policy": reconnects}});
        let mut sim = Sim::new(plan(if v5 { "5" } else { "3.1.1" }, publish, json!([]), more));
        sim.connect();
        sim.start(30 * SECOND);
        for step in steps {
            match step {
                Step::Pass(time) => sim.pass(time),
                Step::Deliver(most) => sim.deliver(most),
                Step::Lose if sim.connected => sim.lose(Cause::Reset),
                Step::Lose => {}
                Step::Room(room) => sim.room = room,
                Step::Unblock => sim.unblock(),
                Step::KeepSession(keeps) => sim.keeps_session = keeps,
                Step::Reason(reason) => sim.puback_reason = reason,
                Step::Shorten => {
                    if let Some(window) = &mut sim.run.window {
                        window.end = window.end.min(sim.now + 1);
                        sim.with(|client, cx| client.on_window(cx));
                        sim.pump();
                    }
                }
            }
            sim.assert_laws();
        }
        sim.unblock();
        sim.pass(40 * SECOND);
        for _ in 0..100 {
            sim.deliver(1000);
        }
        sim.with(|client, cx| client.close_books(cx));
        let directive = sim.with(|client, cx| client.leave(cx));
        sim.obey(directive);
        sim.assert_laws();
        let s = sim.report();
        prop_assert_eq!(s.gauge(Gauge::Pending), 0);
        // Whole messages that reached the broker without DUP: one that was cut by a loss never counted as sent.
        prop_assert_eq!(sim.first, s.total("sent"));
        let settled = s.get(Counter::Acked) + s.total("refused") + s.get(Counter::Fenced);
        prop_assert!(settled <= sim.seen.len() as u64);
    }

    #[test]
    fn no_input_makes_a_client_panic_or_hang(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..8), v5: bool, connected: bool,
    ) {
        let mut sim = Sim::new(plan(if v5 { "5" } else { "3.1.1" }, json!([entry(1, 100)]), json!([{"name": "s", "filter": "t/0", "qos": 1}]), json!({})));
        if connected {
            sim.connect();
            sim.start(SECOND);
        } else {
            sim.pass(1);
        }
        let mut waiting = Vec::new();
        for chunk in chunks {
            waiting.extend_from_slice(&chunk);
            let result = sim.with(|client, cx| client.on_bytes(&waiting, cx));
            match result {
                Ok(used) => drop(waiting.drain(..used)),
                Err(cause) => {
                    sim.lose(cause);
                    break;
                }
            }
        }
        sim.assert_laws();
    }

    #[test]
    fn packets_with_a_valid_frame_and_any_content_are_survived(
        packets in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..40)), 1..12), v5: bool, connected: bool,
    ) {
        let mut sim = Sim::new(plan(if v5 { "5" } else { "3.1.1" }, json!([entry(2, 100)]), json!([{"name": "s", "filter": "t/0", "qos": 1}]), json!({})));
        if connected {
            sim.connect();
            sim.start(SECOND);
        } else {
            sim.pass(1);
        }
        for (first, body) in packets {
            let mut packet = vec![first, body.len() as u8];
            packet.extend_from_slice(&body);
            if let Err(cause) = sim.with(|client, cx| client.on_bytes(&packet, cx)) {
                sim.lose(cause);
                break;
            }
        }
        sim.assert_laws();
    }
}
