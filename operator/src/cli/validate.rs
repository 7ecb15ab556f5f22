//! `mqtt-loadtest validate FILE...`: says what is wrong with manifests, field by field, and runs nothing.

use std::{path::PathBuf, process::ExitCode};

use super::EXIT_USAGE;
use crate::manifest;

/// Arguments of `validate`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Manifests, each with one or more MqttLoadTest documents; other kinds are passed over. `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut valid = true;
    for file in &args.files {
        let place = file.display();
        match manifest::read(file) {
            Err(error) => {
                valid = false;
                println!("{place}: {error}");
            }
            Ok(tests) if tests.is_empty() => {
                valid = false;
                println!("{place}: holds no MqttLoadTest");
            }
            Ok(tests) => {
                for test in tests {
                    let name = test.name;
                    match test.result {
                        Ok(_) => println!("{place}: {name}: valid"),
                        Err(problems) => {
                            valid = false;
                            for problem in problems {
                                println!("{place}: {name}: {problem}");
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) })
}
