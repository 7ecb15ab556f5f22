//! `mqtt-loadtest run` as people use it: the real executable, real workers, the embedded broker and a real mosquitto.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Mosquitto, command, devices, listeners, manifest, run, workers_of};

fn number(status: &Value, path: &str) -> i64 {
    status.pointer(path).and_then(Value::as_i64).unwrap_or_else(|| panic!("{path} in {status:#}"))
}

#[test]
fn the_embedded_broker_gives_a_verdict_with_exact_counts_for_both_protocol_versions() {
    for version in ["5", "3.1.1"] {
        let mut test =
            manifest(json!([devices(60, 2, "500ms"), listeners(2)]), json!({"duration": "4s", "barrier": {"settle": "0s"}}));
        test["spec"]["broker"]["protocolVersion"] = json!(version);
        let done = run(&test, &["--broker", "embedded"], &[]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let status = done.status();
        assert_eq!((status["phase"].as_str(), status["verdict"].as_str()), (Some("Completed"), Some("Passed")));
        for (path, count) in
            [("planned", 480), ("sent", 480), ("acked", 480), ("received", 960), ("expectedMin", 960), ("surplus", 0)]
        {
            assert_eq!(number(&status, &format!("/messages/{path}")), count, "{path} at version {version}");
        }
        assert_eq!(status["messages"]["lost"], "0");
        assert_eq!(number(&status, "/clients/connected"), 62);
        assert_eq!(status["groups"][0]["name"], "devices");
        assert!(status["latency"]["publishAck"]["p99"].as_str().unwrap().ends_with('s'));
        assert!(done.stderr.contains("Connecting") && done.stderr.contains("Running"), "{}", done.stderr);
    }
}

#[test]
fn what_was_sent_and_acknowledged_is_what_mosquitto_counted_to_the_message() {
    let broker = Mosquitto::start("");
    let test = manifest(json!([devices(200, 4, "200ms"), listeners(3)]), json!({"duration": "5s", "barrier": {"settle": "0s"}}));
    let done = run(&test, &["--broker", &broker.url()], &[]);
    assert_eq!(done.code, 0, "{}\n{}", done.stderr, done.stdout);
    let status = done.status();
    let (received, sent) = broker.counts();
    assert_eq!(number(&status, "/messages/sent"), 5000);
    assert_eq!(number(&status, "/messages/acked"), received);
    assert_eq!(number(&status, "/messages/sent"), received);
    assert_eq!(number(&status, "/messages/received"), sent);
    assert_eq!(sent, 15_000);
}

#[test]
fn a_wrong_password_ends_the_run_at_once_and_says_so() {
    let broker = Mosquitto::with_password("alice", "right");
    let mut test = manifest(json!([devices(20, 2, "1s")]), json!({"duration": "60s"}));
    test["spec"]["broker"]["credentials"] =
        json!({"username": "alice", "passwordFrom": {"secret": {"name": "login", "key": "password"}}});
    let since = Instant::now();
    let done = run(&test, &["--broker", &broker.url()], &[("MQTT_LOADTEST_PASSWORD", "wrong")]);
    assert!(since.elapsed() < Duration::from_secs(15));
    assert_eq!(done.code, 1, "{}", done.stderr);
    let status = done.status();
    assert_eq!(status["verdict"], "Failed");
    let reason = status["reason"].as_str().unwrap();
    assert!(["BadUserNameOrPassword", "NotAuthorized"].contains(&reason), "{reason}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("20 of 20 clients (100 %)"), "{message}");
    let condition = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "ClientsConnected").unwrap();
    assert_eq!((condition["status"].as_str(), condition["reason"].as_str()), (Some("False"), Some(reason)));

    test["spec"]["load"] = json!({"duration": "1s", "barrier": {"settle": "0s"}});
    let file = support::file("right\n");
    let path = file.path().to_str().unwrap();
    let done = run(&test, &["--broker", &broker.url(), "--password-file", path], &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[test]
fn an_unknown_host_fails_at_once_and_a_refused_connection_at_the_barrier() {
    let test = manifest(json!([devices(5, 1, "1s")]), json!({"duration": "60s", "barrier": {"timeout": "3s"}}));
    let done = run(&test, &["--broker", "mqtt://no-such-host.invalid:1883"], &[]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    let status = done.status();
    assert!(["DnsNotFound", "DnsFailed", "BarrierTimeout"].contains(&status["reason"].as_str().unwrap()), "{status:#}");
    let done = run(&test, &["--broker", "mqtt://127.0.0.1:1"], &[]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    let status = done.status();
    assert_eq!(status["reason"], "BarrierTimeout");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("5 of 5 clients (100 %)") && message.contains("100 % tcpRefused"), "{message}");
}

#[test]
fn a_manifest_that_cannot_run_is_refused_with_the_fields_path() {
    let mut test = manifest(json!([devices(2, 1, "1s")]), json!({"duration": "1s"}));
    test["spec"]["groups"][0]["clientId"] = json!("same");
    test["spec"]["groups"][0]["publish"][0]["topic"] = json!("a/%x");
    let done = run(&test, &["--broker", "embedded"], &[]);
    assert_eq!((done.code, done.stdout.as_str()), (2, ""));
    assert!(done.stderr.contains("spec.groups[0].clientId: "), "{}", done.stderr);
    assert!(done.stderr.contains("spec.groups[0].publish[0].topic: "), "{}", done.stderr);

    let good = manifest(json!([devices(2, 1, "1s")]), json!({"duration": "1s"}));
    let done = run(&good, &["--broker", "http://x"], &[]);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("--broker: "), "{}", done.stderr);

    let mut secret = good.clone();
    secret["spec"]["broker"]["credentials"] =
        json!({"username": "u", "passwordFrom": {"secret": {"name": "login", "key": "password"}}});
    let done = run(&secret, &["--broker", "embedded"], &[]);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("MQTT_LOADTEST_PASSWORD") && done.stderr.contains("passwordFrom"), "{}", done.stderr);

    let two = format!("{good}\n---\n{}", good.to_string().replace("\"small\"", "\"other\""));
    let done = support::run_text(&two, &["--broker", "embedded"], &[]);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("small, other"), "{}", done.stderr);

    let done = run(&good, &["--broker", "embedded"], &[("MQTT_LOADTEST_WORKER", "/nowhere/worker")]);
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("/nowhere/worker"), "{}", done.stderr);
}

#[test]
fn the_text_output_is_a_table_on_standard_output() {
    let test = manifest(json!([devices(10, 1, "500ms")]), json!({"duration": "2s", "barrier": {"settle": "0s"}}));
    let file = support::file(&test.to_string());
    let output = command().args(["run", file.path().to_str().unwrap(), "--broker", "embedded"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("small: Passed (AllCriteriaMet)"), "{text}");
    assert!(text.lines().any(|line| line.split_whitespace().take(3).eq(["devices", "10/10", "40"])), "{text}");
    assert!(text.contains("publishAck"), "{text}");
}

#[test]
fn an_interrupted_run_ends_its_workers_and_exits_130() {
    let test = manifest(json!([devices(20, 2, "1s")]), json!({"duration": "5m", "barrier": {"settle": "0s"}}));
    let mut started = support::start(&test);
    let workers = started.wait_for_workers(2);
    started.wait_for_line("Running");
    support::signal("INT", started.pid());
    assert_eq!(started.wait(Duration::from_secs(12)), Some(130));
    assert!(workers.iter().all(|pid| !support::is_running(*pid)), "{workers:?}");
}

#[test]
fn workers_end_when_the_run_is_killed_without_a_word() {
    let test = manifest(json!([devices(20, 2, "1s")]), json!({"duration": "5m", "barrier": {"settle": "0s"}}));
    let mut started = support::start(&test);
    let workers = started.wait_for_workers(2);
    started.wait_for_line("Running");
    support::signal("KILL", started.pid());
    started.wait(Duration::from_secs(5));
    let since = Instant::now();
    while workers.iter().any(|pid| support::is_running(*pid)) {
        assert!(since.elapsed() < Duration::from_secs(8), "{workers:?} go on");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_worker_that_is_killed_is_replaced_and_what_it_did_still_counts() {
    let test =
        manifest(json!([devices(40, 2, "100ms")]), json!({"duration": "12s", "barrier": {"settle": "0s"}, "minCoverage": "50%"}));
    let broker = Mosquitto::start("");
    let mut started = support::start_with(&test, &["--broker", &broker.url(), "--output", "json"]);
    let workers = started.wait_for_workers(2);
    started.wait_for_line("Running");
    std::thread::sleep(Duration::from_secs(3));
    support::signal("KILL", workers[0]);
    let again = started.wait_for_other_worker(&workers);
    assert_eq!(workers_of(started.pid()).len(), 2, "{again}");
    let code = started.wait(Duration::from_secs(40));
    let status = started.status();
    let get = |path| number(&status, path);
    let (planned, absent, scheduled) = (get("/messages/planned"), get("/messages/absent"), get("/messages/scheduled"));
    assert_eq!((planned, planned - absent), (4800, scheduled), "{status:#}");
    // Half of 400 a second was missing for a second or two.
    assert!((100..1200).contains(&absent), "{absent}");
    assert!(get("/messages/uncertain") > 0);
    // Nobody subscribes, so what the dead one sent unseen does not put the verdict in doubt.
    assert_eq!((code, status["verdict"].as_str()), (Some(0), Some("Passed")), "{status:#}");
    let received = broker.received();
    let sent = get("/messages/sent");
    assert!((sent..=sent + get("/messages/uncertain")).contains(&received), "{sent} {received}");
}
