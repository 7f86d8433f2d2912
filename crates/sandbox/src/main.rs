//! The local world's program.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match sandbox::cli::run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes is for people; a stack trace would bury it.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("Error: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}
