//! The `mqtt-loadtest` executable: the operator and the command line for people. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    mqtt_loadtest_operator::cli::main()
}
