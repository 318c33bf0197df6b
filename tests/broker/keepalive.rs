//! keepalive
