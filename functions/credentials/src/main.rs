//! The Lambda function `credentials`.

use step::runtime;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    runtime::init();
    let config = step::aws::load().await;
    let step = credentials::Step::new(&config, runtime::Stack::from_env()?);
    runtime::run(|input| step.apply(input)).await
}
