//! The broker of a measurement: a real mosquitto, or the discarding sink.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::Process;

/// A running broker on loopback; ends when dropped.
pub struct Broker {
    /// Where it listens.
    pub address: SocketAddr,
    process: Process,
    _directory: Option<tempfile::TempDir>,
}

impl Broker {
    /// Starts mosquitto with no limit on queues and windows, so that it drops nothing.
    pub fn mosquitto() -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let directory = tempfile::tempdir()?;
        let config = directory.path().join("mosquitto.conf");
        std::fs::write(
            &config,
            format!(
                "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n\
                 max_inflight_messages 0\nset_tcp_nodelay true\nlog_type none\n",
                address.port()
            ),
        )?;
        let program = find_mosquitto()?;
        let args = ["-c".into(), config.display().to_string()];
        let (mut process, _) = Process::guarded(&program, &args, &[])?;
        for _ in 0..100 {
            if TcpStream::connect(address).is_ok() {
                return Ok(Self { address, process, _directory: Some(directory) });
            }
            process.check()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("mosquitto does not listen on {address} after 5 s")
    }

    /// Starts the discarding sink.
    pub fn sink(payload: usize) -> Result<Self> {
        let mut process = Process::role("sink", &[payload.to_string()])?;
        let port: u16 = process.expect("port", Duration::from_secs(5))?.parse()?;
        Ok(Self { address: ([127, 0, 0, 1], port).into(), process, _directory: None })
    }

    /// Messages that arrived so far, as the sink counts them.
    pub fn count(&mut self) -> Result<u64> {
        self.process.count()
    }
}

fn find_mosquitto() -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/usr/local/sbin"])
        .map(|dir| Path::new(dir).join("mosquitto"))
        .find(|file| file.is_file())
        .map(|file| file.display().to_string())
        .context("mosquitto is not installed; on Debian: apt-get install mosquitto")
}
