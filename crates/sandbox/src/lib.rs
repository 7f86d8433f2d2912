//! The local world: AWS, CodeCommit, EKS and Kubernetes on one machine.

pub mod cli;
pub mod clock;
pub mod codecommit;
pub mod demo;
pub mod ec2;
pub mod edge;
pub mod eks;
pub mod iam;
pub mod kubernetes;
pub mod ministack;
pub mod policy;
pub mod progress;
pub mod sigv4;
pub mod wire;
pub mod world;
