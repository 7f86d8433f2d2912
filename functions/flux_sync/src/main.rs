//! The Lambda function `flux_sync`.

use step::runtime;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    runtime::init();
    let config = step::aws::load().await;
    let step = flux_sync::Step::new(&config);
    runtime::run(|input| step.apply(input)).await
}
