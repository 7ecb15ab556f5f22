//! rumqttc's own client: `AsyncClient` and `EventLoop`, one task a client, on one current-thread runtime.
//!
//! Set up as favourably as its API allows: one scheduler task for all clients instead of a timer each, payloads as
//! shared `Bytes` (no copy), TCP_NODELAY, an in-flight limit of 100 (without one, MQTT 5 reserves 14 MB a client),
//! a keep alive longer than a measurement.

use anyhow::Result;

use crate::frames::Protocol;
use crate::load::Load;

/// In-flight messages and queued requests of one client.
const WINDOW: u16 = 100;

/// Runs rumqttc until the suite ends it.
pub fn run(load: &Load) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match load.protocol {
        Protocol::V311 => runtime.block_on(v4::run(load.clone())),
        Protocol::V5 => runtime.block_on(v5::run(load.clone())),
    }
}

/// The two clients have the same shape but no common trait, so the driver is written once over their names.
macro_rules! driver {
    () => {
        /// Connects, subscribes, reports ready, then runs the load.
        pub async fn run(load: Load) -> Result<()> {
            let control = Control::listen();
            let qos = if load.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
            let mut clients = Vec::with_capacity(load.clients);
            for number in 0..load.clients {
                let (client, mut events) = client(&load, number);
                until(&mut events, |packet| matches!(packet, Packet::ConnAck(_))).await?;
                if load.kind == Kind::Receive {
                    client.subscribe(load.topic_of(number), qos).await?;
                    until(&mut events, |packet| matches!(packet, Packet::SubAck(_))).await?;
                }
                tokio::spawn(drive(events, control.clone(), load.qos));
                clients.push((client, load.topic_of(number)));
            }
            control.ready();
            while !control.started() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let payload = Bytes::from(load.payload_bytes());
            match (load.kind, load.rate) {
                (Kind::Send, 0) => {
                    for (client, topic) in clients {
                        let payload = payload.clone();
                        tokio::spawn(async move { while publish(&client, &topic, qos, payload.clone()).await.is_ok() {} });
                    }
                }
                (Kind::Send, _) => schedule(&load, &clients, qos, &payload).await?,
                (Kind::Receive | Kind::Idle, _) => {}
            }
            // The suite ends the process.
            std::future::pending().await
        }

        /// Hands every due publish to its client, every millisecond.
        async fn schedule(load: &Load, clients: &[(AsyncClient, String)], qos: QoS, payload: &Bytes) -> Result<()> {
            let start = Instant::now();
            let mut slot = 0u64;
            loop {
                let due = start + Duration::from_nanos(load.due_ns(slot));
                tokio::time::sleep_until(due.into()).await;
                let now = start.elapsed().as_nanos() as u64;
                while load.due_ns(slot) <= now {
                    let (client, topic) = &clients[(slot % clients.len() as u64) as usize];
                    publish(client, topic, qos, payload.clone()).await?;
                    slot += 1;
                }
            }
        }

        /// Polls one client for ever and counts what it acknowledged, sent (QoS 0) or received.
        async fn drive(mut events: EventLoop, control: Control, qos: u8) {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::PubAck(_) | Packet::Publish(_))) => control.add(1),
                    Ok(Event::Outgoing(Outgoing::Publish(_))) if qos == 0 => control.add(1),
                    Ok(_) => {}
                    Err(error) => {
                        eprintln!("EventLoop: {error}");
                        std::process::exit(1);
                    }
                }
            }
        }

        async fn until(events: &mut EventLoop, wanted: impl Fn(&Packet) -> bool) -> Result<()> {
            for _ in 0..100 {
                if let Event::Incoming(packet) = events.poll().await?
                    && wanted(&packet)
                {
                    return Ok(());
                }
            }
            anyhow::bail!("the broker's answer did not come")
        }
    };
}

mod v4 {
    use std::time::{Duration, Instant};

    use anyhow::Result;
    use bytes::Bytes;
    use rumqttc::{AsyncClient, ClientError, Event, EventLoop, MqttOptions, Outgoing, Packet, QoS};

    use crate::control::Control;
    use crate::load::{Kind, Load};

    driver!();

    fn client(load: &Load, number: usize) -> (AsyncClient, EventLoop) {
        let mut options = MqttOptions::new(load.client_id(number), load.broker.ip().to_string(), load.broker.port());
        options.set_keep_alive(Duration::from_secs(600)).set_inflight(super::WINDOW);
        let (client, mut events) = AsyncClient::new(options, super::WINDOW.into());
        let mut network = events.network_options();
        network.set_tcp_nodelay(true);
        events.set_network_options(network);
        (client, events)
    }

    async fn publish(client: &AsyncClient, topic: &str, qos: QoS, payload: Bytes) -> Result<(), ClientError> {
        client.publish_bytes(topic, qos, false, payload).await
    }
}

mod v5 {
    use std::time::{Duration, Instant};

    use anyhow::Result;
    use bytes::Bytes;
    use rumqttc::Outgoing;
    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::mqttbytes::v5::Packet;
    use rumqttc::v5::{AsyncClient, ClientError, Event, EventLoop, MqttOptions};

    use crate::control::Control;
    use crate::load::{Kind, Load};

    driver!();

    fn client(load: &Load, number: usize) -> (AsyncClient, EventLoop) {
        let mut options = MqttOptions::new(load.client_id(number), load.broker.ip().to_string(), load.broker.port());
        options.set_keep_alive(Duration::from_secs(600)).set_outgoing_inflight_upper_limit(super::WINDOW);
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        AsyncClient::new(options, super::WINDOW.into())
    }

    async fn publish(client: &AsyncClient, topic: &str, qos: QoS, payload: Bytes) -> Result<(), ClientError> {
        client.publish(topic, qos, false, payload).await
    }
}
