//! What proves this room: the vectors, round trips, hostile bytes, and other people's codecs.

mod arbitrary;
mod differential;
mod hostile;
mod mqttbytes;
mod rmqtt;
mod round_trip;
mod vectors;
