//! The immutable ConfigMap with the plan. It holds the whole spec of the run, so that an edit changes nothing for a run that
//! has begun.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use mqtt_loadtest_crds::plan::RunPlan;

use super::{Names, child};

/// Key of the plan in its ConfigMap, and the name of the file that the workers read.
pub const PLAN_KEY: &str = "plan.json";

/// The ConfigMap with the plan of a run.
///
/// # Errors
/// When the plan does not serialize.
pub fn plan_config_map(plan: &RunPlan) -> Result<ConfigMap, serde_json::Error> {
    let text = serde_json::to_string(plan)?;
    Ok(ConfigMap {
        metadata: child(&plan.run, &Names::new(&plan.run).plan, "plan"),
        data: Some(BTreeMap::from([(PLAN_KEY.into(), text)])),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan, *};

    #[test]
    fn the_plan_comes_back_from_its_config_map_as_it_was() {
        let plan = plan();
        let map = plan_config_map(&plan).unwrap();
        assert_eq!(map.immutable, Some(true));
        let read: RunPlan = serde_json::from_str(&map.data.unwrap()[PLAN_KEY]).unwrap();
        assert_eq!(read, plan);
    }
}
