//! The local world's program.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match sandbox::cli::run().await {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads on, as in `sandbox demo | head`: nobody to tell, either.
        Err(error) if error.chain().any(is_broken_pipe) => ExitCode::FAILURE,
        Err(error) => {
            // The chain of causes is for people; a stack trace would bury it.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("Error: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
