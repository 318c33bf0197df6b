//! strict
