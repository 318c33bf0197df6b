//! Tests of the log over a simulated and a real disk.
