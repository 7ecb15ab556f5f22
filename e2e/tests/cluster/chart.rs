//! What the chart renders is what it should be, and a real API server takes it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use mqtt_loadtest_e2e::{Lane, Operator, TestBed, repository, test_bed};
use serde_json::Value;

const CHART: &str = "charts/mqtt-loadtest-operator";
const ACCOUNT: &str = "system:serviceaccount:mqtt-loadtest-system:mqtt-loadtest-operator";

async fn render(bed: &TestBed, values: &[&str]) -> Result<String> {
    let chart = repository().join(CHART);
    let chart = chart.to_str().context("a path in UTF-8")?;
    let args = ["helm", "template", "other", chart, "--namespace", &bed.namespace].into_iter().chain(values.iter().copied());
    bed.cluster.script(args).output().await
}

/// The documents of a manifest as `kubectl` reads them.
async fn documents(bed: &TestBed, manifest: &str) -> Result<Vec<Value>> {
    let json = bed.cluster.kubectl(["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"]).stdin(manifest);
    let text = json.output().await?;
    let documents = serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<Vec<Value>, _>>()?;
    Ok(documents.into_iter().flat_map(|d| d["items"].as_array().cloned().unwrap_or_else(|| vec![d.clone()])).collect())
}

#[tokio::test]
async fn the_crd_in_the_chart_is_the_generated_one_and_stays_when_the_release_goes() -> Result<()> {
    test_bed("chart-crd", Lane::Shared, async |bed| {
        let rendered = documents(bed, &render(bed, &["--show-only", "templates/crd.yaml"]).await?).await?;
        let generated = std::fs::read_to_string(repository().join("crds/mqttloadtests.yaml"))?;
        let generated = documents(bed, &generated).await?;
        assert_eq!(rendered[0]["spec"], generated[0]["spec"]);
        assert_eq!(rendered[0]["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        let without = render(bed, &["--set", "crds.install=false"]).await?;
        ensure!(!without.contains("kind: CustomResourceDefinition"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_api_server_takes_the_crd_without_a_warning() -> Result<()> {
    test_bed("crd", Lane::Shared, async |bed| {
        let generated = std::fs::read_to_string(repository().join("crds/mqttloadtests.yaml"))?;
        let create =
            ["apply", "--server-side", "--force-conflicts", "--field-manager=test", "--dry-run=server", "--warnings-as-errors"];
        bed.kubectl(create).args(["-f", "-"]).stdin(generated).output().await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_api_server_takes_every_object_of_the_chart() -> Result<()> {
    test_bed("chart-apply", Lane::Shared, async |bed| {
        let namespaces = format!("watchNamespaces={{{}}}", bed.namespace);
        for values in [
            &["--set", "metrics.service=true"][..],
            &["--set", &namespaces, "--set", "imagePullSecrets={a,b}", "--set", "podSecurityContext.runAsUser=null"],
            &[
                "--set",
                "operatorKey.existingSecret=mine",
                "--set",
                "replicas=2",
                "--set",
                "extraEnv[0].name=A,extraEnv[0].value=b",
            ],
        ] {
            let manifest = render(bed, &[&["--set", "crds.install=false"], values].concat()).await?;
            let apply = ["apply", "--dry-run=server", "--warnings-as-errors", "--validate=strict", "-f", "-"];
            bed.kubectl(apply).stdin(manifest).output().await.with_context(|| format!("{values:?}"))?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn values_that_mean_nothing_are_refused() -> Result<()> {
    test_bed("chart-values", Lane::Shared, async |bed| {
        for wrong in ["replica=2", "logFormat=xml", "maxConcurrentRuns=-1", "watchNamespaces={Not_A_Name}", "image.repository="] {
            let error = render(bed, &["--set", wrong]).await.expect_err(wrong);
            ensure!(format!("{error:#}").contains("values don't meet the specifications"), "{wrong}: {error:#}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_list_of_namespaces_gives_no_right_in_any_other() -> Result<()> {
    test_bed("chart-rbac", Lane::Shared, async |bed| {
        let objects =
            documents(bed, &render(bed, &["--set", "watchNamespaces={a,b}", "--set", "crds.install=false"]).await?).await?;
        let kinds: BTreeSet<_> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
        ensure!(!kinds.contains("ClusterRole") && !kinds.contains("ClusterRoleBinding"), "{kinds:?}");
        let reads_pods = |role: &&Value| role["rules"].to_string().contains("\"pods\"");
        let roles = objects.iter().filter(|object| object["kind"] == "Role").filter(reads_pods);
        let namespaces: BTreeSet<_> = roles.filter_map(|role| role["metadata"]["namespace"].as_str()).collect();
        assert_eq!(namespaces, BTreeSet::from(["a", "b"]));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_installed_operator_may_create_secrets_and_never_read_one() -> Result<()> {
    test_bed("rights", Lane::Shared, async |bed| {
        let operator = Operator::installed(bed).await?;
        operator.ready(std::time::Duration::from_secs(60)).await?;
        let may = async |verb: &str, what: &str| {
            let answer = bed.kubectl(["auth", "can-i", verb, what, "--as", ACCOUNT, "--quiet"]);
            answer.output().await.is_ok()
        };
        for verb in ["get", "list", "watch", "update", "patch", "delete"] {
            ensure!(!may(verb, "secrets").await, "the operator may {verb} Secrets");
        }
        for (verb, what) in
            [("create", "secrets"), ("list", "mqttloadtests.mqttloadtest.dev"), ("create", "jobs.batch"), ("watch", "pods")]
        {
            ensure!(may(verb, what).await, "the operator may not {verb} {what}");
        }
        for (verb, what) in
            [("update", "mqttloadtests.mqttloadtest.dev"), ("create", "pods"), ("get", "nodes"), ("create", "roles")]
        {
            ensure!(!may(verb, what).await, "the operator may {verb} {what}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_operator_key_is_made_once_and_survives_an_upgrade() -> Result<()> {
    test_bed("key", Lane::Alone, async |bed| {
        let operator = Operator::installed(bed).await?;
        let secrets: Api<Secret> = Api::namespaced(bed.client.clone(), "mqtt-loadtest-system");
        let key = async || {
            let secret = secrets.get("mqtt-loadtest-operator-key").await?;
            secret.data.and_then(|mut data| data.remove("key")).context("the Secret has no key")
        };
        let before = key().await?;
        assert_eq!(before.0.len(), 32);
        operator.install([]).await?;
        assert_eq!(key().await?, before);
        Ok(())
    })
    .await
}
