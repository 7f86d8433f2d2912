//! The Lambda function `flux_install`.

use step::runtime;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    runtime::init();
    let config = step::aws::load().await;
    let step = flux_install::Step::new(&config);
    runtime::run(|input| step.apply(input)).await
}
