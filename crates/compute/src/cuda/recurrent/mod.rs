//! Layers with recurrent state: short convolutions, the gated delta rule, state-space scans, and the norms and gates after them.
//!
//! The delta rule and, for states of 128 rows, the scan have two forms: tokens one after the other, with the state in registers, where a sequence brings few of them or sums are exact
//! (then how a prompt is cut into steps changes no bit), and chunks of tokens on the tensor cores. The batch says on the device which slot a
//! sequence's state is read from, and which slots are written after how many of its tokens (`states.cuh`).

mod delta_chunks;
mod delta_rule;
mod gated_norm;
mod short_conv;
mod ssm_scan;

pub(in crate::cuda) use delta_rule::{NormAndGate, check_delta_rule, delta_rule, takes_norm};
pub(in crate::cuda) use gated_norm::gated_norm;
pub(in crate::cuda) use short_conv::short_conv;
pub(in crate::cuda) use ssm_scan::{check_ssm_scan, ssm_scan};

use super::driver::{Driver, Rooms};
use crate::Result;

/// Loads the room's kernels.
pub(in crate::cuda) fn load(driver: &dyn Driver, rooms: &mut Rooms) -> Result<()> {
    rooms.add(short_conv::Kernels::load(driver)?);
    rooms.add(delta_rule::Kernels::load(driver)?);
    rooms.add(delta_chunks::Kernels::load(driver)?);
    rooms.add(ssm_scan::Kernels::load(driver)?);
    rooms.add(gated_norm::Kernels::load(driver)?);
    Ok(())
}
