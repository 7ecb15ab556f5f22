//! `mqtt-loadtest operator`
use std::process::ExitCode;
#[derive(clap::Args, Debug)]
pub(super) struct Args {}
pub(super) async fn main(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("x")
}
