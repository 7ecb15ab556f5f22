//! A TCP proxy between workers and a broker that can hold back what clients send, and cut their connections.

use super::wait_until;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    held: AtomicBool,
    ended: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<State>::default();
        let accepting = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Relaxed) {
                    return;
                }
                let (Ok(client), Ok(broker)) = (client, TcpStream::connect((Ipv4Addr::LOCALHOST, to))) else { continue };
                accepting.streams.lock().unwrap().extend([client.try_clone().unwrap(), broker.try_clone().unwrap()]);
                for (mut from, mut to, hold) in
                    [(client.try_clone().unwrap(), broker.try_clone().unwrap(), true), (broker, client, false)]
                {
                    let state = accepting.clone();
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16 * 1024];
                        while let Ok(n @ 1..) = from.read(&mut buffer) {
                            while hold && state.held.load(Relaxed) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            if to.write_all(&buffer[..n]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Proxy { port, state }
    }

    /// Holds back what clients send, or lets it go on.
    pub fn hold(&self, held: bool) {
        self.state.held.store(held, Relaxed);
    }

    /// Ends every connection there is.
    pub fn cut(&self) {
        for stream in self.state.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Relaxed);
        self.cut();
        let port = self.port;
        wait_until("the proxy ends", Duration::from_secs(5), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
