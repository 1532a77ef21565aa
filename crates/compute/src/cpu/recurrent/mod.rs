//! Layers with recurrent state: short convolutions, the gated delta rule, state-space scans, and the norms and gates after them.
//!
//! All take the tokens of a sequence one after the other, so a result depends on the tokens before it and on nothing else: how a prompt
//! is cut into steps changes no bit. Threads share sequences and, within one, what does not depend on each other: channels of a
//! convolution, columns of a head's state. A state is computed on in the slot where the step leaves it, a block of columns after the other,
//! and copied to the other slots that the batch says are written.

mod delta_rule;
mod gates;
mod head_states;
mod short_conv;
mod ssm_scan;

pub(super) use delta_rule::delta_rule;
pub(super) use gates::{gated_norm, sigmoid_gate};
pub(super) use short_conv::short_conv;
pub(super) use ssm_scan::ssm_scan;
