//! Real processes for the worker's tests: a mosquitto on a free port, and workers that are steered as the operator does it.
//! Everything ends with the value that started it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

pub mod certificates;
pub mod proxy;

use mqtt_loadtest_crds::plan::{RunIdentity, RunPlan};
use mqtt_loadtest_worker::accounting::metrics::{self, Limits};
use mqtt_loadtest_worker::accounting::{Snapshot, summary};
use mqtt_loadtest_worker::engine::clock::unix_now;
use mqtt_loadtest_worker::protocol::{Release, ShardPhase, ShardStatus, Start, Stop};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const SECOND: u64 = 1_000_000_000;
const TOKEN: &str = "test-token";

/// A line of mosquitto's configuration after which it offers no TLS newer than 1.2.
pub const OLD_TLS: &str = "# TLS 1.2 at most\n";
const OPENSSL_1_2: &str =
    "openssl_conf = conf\n[conf]\nssl_conf = ssl\n[ssl]\nsystem_default = sys\n[sys]\nMaxProtocol = TLSv1.2\n";

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A mosquitto that drops nothing.
pub struct Broker {
    child: Child,
    pub port: u16,
    dir: TempDir,
}

impl Broker {
    pub fn start(extra: &str) -> Broker {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        Self::start_on(port, extra, dir)
    }

    fn start_on(port: u16, extra: &str, dir: TempDir) -> Broker {
        let config = dir.path().join("mosquitto.conf");
        // Without effect unless this runs as root.
        let user = "user root\n";
        let text = format!(
            "listener {port} 127.0.0.1\n{user}sys_interval 1\nmax_queued_messages 0\nmax_inflight_messages 0\nlog_dest none\n\
             set_tcp_nodelay true\n{}{extra}\n",
            if extra.contains("allow_anonymous") { "" } else { "allow_anonymous true\n" }
        );
        std::fs::write(&config, text).unwrap();
        let program = if std::path::Path::new("/usr/sbin/mosquitto").exists() { "/usr/sbin/mosquitto" } else { "mosquitto" };
        let mut command = Command::new(program);
        command.arg("-c").arg(&config).stdin(Stdio::null());
        let openssl = dir.path().join("openssl.cnf");
        if extra.contains(OLD_TLS) {
            std::fs::write(&openssl, OPENSSL_1_2).unwrap();
            command.env("OPENSSL_CONF", &openssl);
        }
        let child = command.spawn().expect("mosquitto is installed");
        wait_until("mosquitto listens", Duration::from_secs(5), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        Broker { child, port, dir }
    }

    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Ends it without a word and starts it anew on the same port, with nothing in its memory.
    pub fn restart(self, extra: &str) -> Broker {
        let port = self.port;
        drop(self);
        Self::start_on(port, extra, tempfile::tempdir().unwrap())
    }

    /// What the broker itself counts: PUBLISH packets received and sent.
    pub fn counts(&self) -> (u64, u64) {
        // $SYS topics are refreshed every second; the second value is surely newer than this call.
        std::thread::sleep(Duration::from_millis(2100));
        let sys = |topic: &str| read_retained(self.port, topic).parse().unwrap();
        (sys("$SYS/broker/publish/messages/received"), sys("$SYS/broker/publish/messages/sent"))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The retained message of a topic.
fn read_retained(port: u16, topic: &str) -> String {
    let mut options = rumqttc::MqttOptions::new(format!("reader-{}", unix_now()), "127.0.0.1", port);
    options.set_keep_alive(Duration::from_secs(30));
    let (client, mut connection) = rumqttc::Client::new(options, 10);
    client.subscribe(topic, rumqttc::QoS::AtMostOnce).unwrap();
    for event in connection.iter() {
        if let rumqttc::Event::Incoming(rumqttc::Packet::Publish(publish)) = event.unwrap() {
            return String::from_utf8(publish.payload.to_vec()).unwrap();
        }
    }
    unreachable!("the connection ended")
}

pub fn wait_until(what: &str, longest: Duration, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < longest, "not within {longest:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A plan from the parts of a spec.
pub fn plan(broker: serde_json::Value, groups: serde_json::Value, load: serde_json::Value) -> RunPlan {
    let spec = serde_json::from_value(serde_json::json!({"broker": broker, "groups": groups, "load": load})).unwrap();
    let run =
        RunIdentity { namespace: "ns".into(), name: "test".into(), uid: format!("uid-{}", unix_now()), id: "1-test".into() };
    RunPlan::new(run, spec)
}

/// A worker process.
pub struct Worker {
    child: Child,
    address: SocketAddr,
    dir: TempDir,
}

impl Worker {
    pub fn start(plan: &RunPlan, group: usize, shard: u32, extra: &[&str]) -> Worker {
        let (child, dir) = Self::spawn(plan, group, shard, extra);
        let mut child = child;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let listening: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        let address = listening["listening"].as_str().unwrap().parse().unwrap();
        Worker { child, address, dir }
    }

    pub fn spawn(plan: &RunPlan, group: usize, shard: u32, extra: &[&str]) -> (Child, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plan.json"), serde_json::to_string(plan).unwrap()).unwrap();
        std::fs::write(dir.path().join("token"), TOKEN).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_mqtt-loadtest-worker"))
            .args(["--plan", "plan.json", "--token-file", "token", "--termination-log", "last-word", "--listen", "127.0.0.1:0"])
            .args(["--group-index", &group.to_string(), "--shard", &shard.to_string()])
            .args(extra)
            .env("RUST_LOG", "warn")
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        (child, dir)
    }

    fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Vec<u8>) {
        use std::io::Read;
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let split = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..split]).into_owned();
        assert!(!head.to_ascii_lowercase().contains("transfer-encoding: chunked"), "{head}");
        (head.split(' ').nth(1).unwrap().parse().unwrap(), answer[split + 4..].to_vec())
    }

    pub fn raw(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, Vec<u8>) {
        let headers = token.map(|t| format!("Authorization: Bearer {t}\r\n")).unwrap_or_default();
        self.request(method, path, &headers, body)
    }

    pub fn post(&self, path: &str, body: &impl serde::Serialize) -> u16 {
        self.raw("POST", path, Some(TOKEN), &serde_json::to_string(body).unwrap()).0
    }

    pub fn release(&self) {
        assert_eq!(self.post("/v1/release", &Release { at_unix_ns: unix_now() }), 200);
    }

    /// Starts in 50 ms.
    pub fn begin(&self, seconds: f64) -> Start {
        let start_unix_ns = unix_now() + 50_000_000;
        let start = Start { start_unix_ns, end_unix_ns: start_unix_ns + (seconds * 1e9) as u64 };
        assert_eq!(self.post("/v1/start", &start), 200);
        start
    }

    pub fn stop(&self, reason: &str) {
        assert_eq!(self.post("/v1/stop", &Stop { reason: reason.into() }), 200);
    }

    pub fn status(&self) -> ShardStatus {
        serde_json::from_slice(&self.raw("GET", "/v1/status", Some(TOKEN), "").1).unwrap()
    }

    pub fn snapshot(&self) -> Snapshot {
        let headers = format!(
            "Authorization: Bearer {TOKEN}\r\nAccept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n"
        );
        let (status, body) = self.request("GET", "/metrics", &headers, "");
        assert_eq!(status, 200);
        metrics::decode(&body, &Limits::default()).unwrap()
    }

    pub fn wait_for(&self, phase: ShardPhase, longest: Duration) {
        wait_until(&format!("{phase:?}"), longest, || self.status().phase >= phase);
    }

    /// Collects the final counts and waits for the exit. Returns them and the exit status.
    pub fn collect(mut self) -> (Snapshot, i32) {
        self.wait_for(ShardPhase::Finished, Duration::from_secs(60));
        let last = self.snapshot();
        assert_eq!(self.raw("POST", "/v1/finish", Some(TOKEN), "").0, 200);
        let status = self.wait();
        let word = summary::decode(&self.last_word()).unwrap();
        assert_eq!(word.total("sent"), last.total("sent"), "the termination message agrees with the last scrape");
        (last, status)
    }

    pub fn wait(&mut self) -> i32 {
        let mut code = None;
        wait_until("the worker exits", Duration::from_secs(15), || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code().unwrap_or(-1)
    }

    pub fn last_word(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("last-word")).unwrap()
    }

    pub fn terminate(&self) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    /// Connects everything, runs for so long, and collects.
    pub fn whole_run(self, seconds: f64) -> Snapshot {
        self.release();
        self.wait_for(ShardPhase::Connected, Duration::from_secs(20));
        self.begin(seconds);
        let (snapshot, status) = self.collect();
        assert_eq!(status, 0);
        snapshot
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
