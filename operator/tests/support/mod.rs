//! The executable, its children, manifests, and a mosquitto: real processes that end with the value that started them.

#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// The executable under test, with the worker of the working tree.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqtt-loadtest"));
    command.env("MQTT_LOADTEST_WORKER", worker()).env_remove("MQTT_LOADTEST_PASSWORD").stdin(Stdio::null());
    command
}

/// The worker, built once: cargo builds only the executables of the package that is tested.
fn worker() -> PathBuf {
    static WORKER: OnceLock<PathBuf> = OnceLock::new();
    WORKER
        .get_or_init(|| {
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--locked", "--package", "mqtt-loadtest-worker", "--bin", "mqtt-loadtest-worker"])
                .status()
                .unwrap();
            assert!(built.success());
            PathBuf::from(env!("CARGO_BIN_EXE_mqtt-loadtest")).with_file_name("mqtt-loadtest-worker")
        })
        .clone()
}

/// Publishers at QoS 1, each with one message an interval.
pub fn devices(clients: u32, shards: u32, interval: &str) -> Value {
    json!({"name": "devices", "clients": clients, "shards": {"count": shards}, "connect": {"ratePerSecond": 500},
           "publish": [{"name": "telemetry", "topic": "test/%i", "qos": 1, "payload": {"size": 64}, "interval": interval}]})
}

/// Subscribers that get everything.
pub fn listeners(clients: u32) -> Value {
    json!({"name": "listeners", "clients": clients, "subscribe": [{"name": "all", "filter": "test/#", "qos": 1}]})
}

pub fn manifest(groups: Value, load: Value) -> Value {
    json!({
        "apiVersion": "mqttloadtest.dev/v1alpha1",
        "kind": "MqttLoadTest",
        "metadata": {"name": "small"},
        "spec": {"broker": {"endpoints": ["mqtt://broker.example:1883"]}, "groups": groups, "load": load}
    })
}

pub fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// What a run left.
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

pub fn run(manifest: &Value, args: &[&str], env: &[(&str, &str)]) -> Done {
    run_text(&manifest.to_string(), args, env)
}

pub fn run_text(manifest: &str, args: &[&str], env: &[(&str, &str)]) -> Done {
    let file = file(manifest);
    let mut command = command();
    command.arg("run").arg(file.path()).args(["--output", "json"]).args(args).envs(env.iter().copied());
    let output = command.output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A run under way.
pub struct Started {
    child: Child,
    progress: Arc<Mutex<String>>,
    _file: NamedTempFile,
}

/// Starts a run against the embedded broker.
pub fn start(manifest: &Value) -> Started {
    start_with(manifest, &["--broker", "embedded"])
}

pub fn start_with(manifest: &Value, args: &[&str]) -> Started {
    let file = file(&manifest.to_string());
    let mut command = command();
    command.arg("run").arg(file.path()).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let progress = Arc::new(Mutex::new(String::new()));
    let (stderr, lines) = (child.stderr.take().unwrap(), progress.clone());
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            lines.lock().unwrap().push_str(&(line + "\n"));
        }
    });
    Started { child, progress, _file: file }
}

impl Started {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait_for_line(&self, part: &str) {
        wait_until(part, Duration::from_secs(20), || self.progress.lock().unwrap().contains(part).then_some(()));
    }

    pub fn wait_for_workers(&self, count: usize) -> Vec<u32> {
        wait_until("the workers", Duration::from_secs(20), || Some(workers_of(self.pid())).filter(|w| w.len() == count))
    }

    pub fn wait_for_other_worker(&self, known: &[u32]) -> u32 {
        let other = || workers_of(self.pid()).into_iter().find(|pid| !known.contains(pid));
        wait_until("a new worker", Duration::from_secs(20), other)
    }

    /// The exit status, once it has ended.
    pub fn wait(&mut self, longest: Duration) -> Option<i32> {
        wait_until("the end", longest, || self.child.try_wait().unwrap()).code()
    }

    pub fn status(&mut self) -> Value {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_until<T>(what: &str, longest: Duration, mut holds: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(since.elapsed() < longest, "not within {longest:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes of a parent that are not zombies.
pub fn workers_of(parent: u32) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|(state, of)| of == parent && state != "Z"))
        .collect();
    found.sort_unstable();
    found
}

pub fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

pub fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// A mosquitto that drops nothing.
pub struct Mosquitto {
    child: Child,
    port: u16,
    _files: tempfile::TempDir,
}

impl Mosquitto {
    pub fn start(extra: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let access = if extra.is_empty() { "allow_anonymous true" } else { extra };
        Self::launch(files, access)
    }

    /// One that asks for a password.
    pub fn with_password(user: &str, password: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("passwords");
        fs::write(&path, format!("{user}:{password}\n")).unwrap();
        assert!(Command::new("mosquitto_passwd").arg("-U").arg(&path).status().unwrap().success());
        let access = format!("allow_anonymous false\npassword_file {}", path.display());
        Self::launch(files, &access)
    }

    fn launch(files: tempfile::TempDir, access: &str) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let config = files.path().join("mosquitto.conf");
        // `user` has no effect unless this runs as root.
        let text = format!(
            "listener {port} 127.0.0.1\nuser root\nsys_interval 1\nmax_queued_messages 0\nmax_inflight_messages 0\n\
             log_dest none\nset_tcp_nodelay true\n{access}\n"
        );
        fs::write(&config, text).unwrap();
        let program = if fs::exists("/usr/sbin/mosquitto").unwrap() { "/usr/sbin/mosquitto" } else { "mosquitto" };
        let child = Command::new(program).arg("-c").arg(&config).stdin(Stdio::null()).spawn().expect("mosquitto is installed");
        wait_until("mosquitto", Duration::from_secs(5), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Self { child, port, _files: files }
    }

    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// PUBLISH packets that the broker itself counted: received and sent.
    pub fn counts(&self) -> (i64, i64) {
        // $SYS topics are refreshed every second, so these are newer than this call; reading them counts as sent.
        std::thread::sleep(Duration::from_millis(2100));
        let sent = self.sys("$SYS/broker/publish/messages/sent");
        (self.sys("$SYS/broker/publish/messages/received"), sent)
    }

    /// PUBLISH packets that the broker received. What it sent has no topic before it has sent anything.
    pub fn received(&self) -> i64 {
        std::thread::sleep(Duration::from_millis(2100));
        self.sys("$SYS/broker/publish/messages/received")
    }

    fn sys(&self, topic: &str) -> i64 {
        let mut options = rumqttc::MqttOptions::new("counts", "127.0.0.1", self.port);
        options.set_keep_alive(Duration::from_secs(30));
        let (client, mut connection) = rumqttc::Client::new(options, 10);
        client.subscribe(topic, rumqttc::QoS::AtMostOnce).unwrap();
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(10) {
            let Ok(event) = connection.recv_timeout(Duration::from_secs(1)) else { continue };
            if let rumqttc::Event::Incoming(rumqttc::Packet::Publish(publish)) = event.unwrap() {
                return String::from_utf8(publish.payload.to_vec()).unwrap().parse().unwrap();
            }
        }
        panic!("the broker has not published {topic} yet")
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
