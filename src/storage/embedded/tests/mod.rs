//! The contract on embedded storage, on a real folder and on a simulated medium, and what is this
//! backend's own: reading back, copying out, bounds, damage.

mod bounds;
mod contract_real;
mod contract_sim;
mod damage;
mod fuzzy;
mod rig;
