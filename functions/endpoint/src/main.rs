//! The Lambda function `endpoint`.

use step::runtime;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    runtime::init();
    let config = step::aws::load().await;
    let step = endpoint::Step::new(&config, runtime::Stack::from_env()?, endpoint::service_from_env());
    runtime::run(|input| step.apply(input)).await
}
