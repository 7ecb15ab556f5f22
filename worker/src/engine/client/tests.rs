//! Behaviour of the state machine without sockets.
