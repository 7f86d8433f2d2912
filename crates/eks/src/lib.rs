//! The Kubernetes API of an EKS cluster: its bearer token ([`token`]) and a client for objects of
//! any kind ([`kubernetes`]), whose refusals and failures carry the names of [`step::ErrorName`].

pub mod kubernetes;
pub mod token;

pub use kubernetes::{Kubernetes, ObjectRef, connect};
