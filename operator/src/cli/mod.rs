//! The command line. Results go to standard output, logs and errors to standard error. Exit status: 0 done (a run: Passed),
//! 1 failed, 2 wrong usage or an invalid manifest, 3 inconclusive, 130 interrupted.

mod crd;
mod logging;
mod operator;
mod operator_key;
mod run;
mod secret_files;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use logging::{LogFormat, init_logging};

/// Exit status for wrong usage and for invalid manifests; the same that clap uses.
pub const EXIT_USAGE: u8 = 2;

/// Load tests of MQTT platforms, on Kubernetes and without it.
#[derive(Parser, Debug)]
#[command(name = "mqtt-loadtest", version, propagate_version = true)]
struct Cli {
    /// How logs on standard error look.
    #[arg(long, env = "LOG_FORMAT", default_value = "text", global = true, hide_env = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a manifest without a cluster.
    Run(run::Args),
    /// Check manifests without running them.
    Validate(validate::Args),
    /// Print the CustomResourceDefinition.
    Crd,
    /// Run the operator in a cluster.
    Operator(operator::Args),
    /// Create the Secret with the key from which the workers' tokens derive, unless it is there.
    #[command(hide = true)]
    OperatorKey(operator_key::Args),
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    init_logging(cli.log_format);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads for the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match cli.command {
            Command::Run(args) => run::main(args).await,
            Command::Validate(args) => validate::main(&args),
            Command::Crd => crd::main(),
            Command::Operator(args) => operator::main(args).await,
            Command::OperatorKey(args) => operator_key::main(args).await,
        }
    });
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
