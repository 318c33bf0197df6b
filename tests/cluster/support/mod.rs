//! What the tests of this folder share: the services, started once for all of them.

mod services;

pub(crate) use services::services;
