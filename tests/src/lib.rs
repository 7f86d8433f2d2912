//! End-to-end tests over the local world, and checks of what is shipped beside the code: state
//! machine, template, sample events. Everything is in `tests/`.
