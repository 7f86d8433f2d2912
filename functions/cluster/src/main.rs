//! The Lambda function `cluster`.

use step::runtime;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    runtime::init();
    let config = step::aws::load().await;
    let step = cluster::Step::new(&config, runtime::Stack::from_env()?, cluster::Settings::from_env()?);
    runtime::run(|request| step.apply(request)).await
}
