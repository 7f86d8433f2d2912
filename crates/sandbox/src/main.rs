//! The local world's program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    sandbox::cli::run().await
}
