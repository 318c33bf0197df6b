//! What proves this room: the vectors, round trips, hostile bytes, and other people's codecs.

mod vectors;
