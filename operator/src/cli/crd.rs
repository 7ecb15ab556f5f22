//! `mqtt-loadtest crd`: prints the CustomResourceDefinition that this build understands.

use std::{
    io::{self, Write},
    process::ExitCode,
};

pub(super) fn main() -> anyhow::Result<ExitCode> {
    io::stdout().write_all(mqtt_loadtest_crds::crd::crd_yaml().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
