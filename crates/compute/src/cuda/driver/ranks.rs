//! GPUs that share a model: what each knows of the others.

use super::api::{DevicePtr, Driver, Link};
use super::buffer::Buffer;
use super::kernels::kernel_args;
use crate::{Error, Rank, Result};
use std::sync::Arc;

kernel_args! {
    in "../common/ranks_args.cuh";

    /// GPUs that can work together.
    pub const MAX_RANKS: usize = 8;

    /// Numbers of a round of an exchange at most.
    const PLACES: usize = 1 << 17;

    /// Blocks at most of a kernel that takes part in a round.
    const MAX_BLOCKS: usize = 1024;

    /// A GPU's place among the others.
    struct RanksArgs {
        /// [2, n_ranks, PLACES] each
        mailboxes: [DevicePtr; MAX_RANKS] as "uint2*",
        /// [MAX_BLOCKS] times the number of rounds so far, one for each block to read
        rounds: DevicePtr as "uint32_t*",
        /// Not 0 when a GPU will not answer any more.
        cut: DevicePtr as "const uint32_t*",
        rank: u32,
        n_ranks: u32,
    }
}

/// One GPU's place among those that work together.
pub(in crate::cuda) struct Member {
    pub(in crate::cuda) rank: Rank,
    pub(in crate::cuda) link: Arc<dyn Link>,
    /// Everybody's; `None` where GPUs do not reach each other's memory.
    mailboxes: Option<Arc<Vec<Buffer>>>,
    /// The number of rounds so far, for each block that reads it.
    rounds: Buffer,
}

fn zeros(driver: &Arc<dyn Driver>, bytes: usize, what: &str) -> Result<Buffer> {
    let buffer = Buffer::new(driver, bytes, what)?;
    // SAFETY: the buffer has this many bytes.
    unsafe { driver.zero(buffer.ptr(), bytes)? };
    // Others write here on streams of their own.
    driver.synchronize()?;
    Ok(buffer)
}

fn mailbox(driver: &Arc<dyn Driver>, count: usize) -> Result<Buffer> {
    zeros(driver, 2 * count * PLACES * 8, "a mailbox of other GPUs")
}

impl Member {
    /// A place for each of these GPUs, in this order.
    ///
    /// Errors: `Device` for more GPUs than [`MAX_RANKS`].
    pub(in crate::cuda) fn group(drivers: &[Arc<dyn Driver>], link: Arc<dyn Link>) -> Result<Vec<Self>> {
        let count = drivers.len();
        if count > MAX_RANKS {
            return Err(Error::Device {
                device: format!("{count} CUDA devices"),
                message: format!("up to {MAX_RANKS} can work together"),
            });
        }
        let mailboxes = match link.reaches() {
            true => Some(Arc::new(drivers.iter().map(|d| mailbox(d, count)).collect::<Result<Vec<_>>>()?)),
            false => None,
        };
        let member = |(index, driver)| {
            let rounds = zeros(driver, 4 * MAX_BLOCKS, "counts of rounds")?;
            let mailboxes = mailboxes.clone();
            Ok(Self { rank: Rank { index, count }, link: link.clone(), mailboxes, rounds })
        };
        drivers.iter().enumerate().map(member).collect()
    }

    /// Errors: `Device` after a GPU has left.
    pub(in crate::cuda) fn check(&self) -> Result<()> {
        match self.link.is_cut() {
            false => Ok(()),
            true => Err(Error::Device {
                device: format!("CUDA rank {}", self.rank.index),
                message: "another GPU that shares the model has failed".into(),
            }),
        }
    }

    pub(in crate::cuda) fn leave(&self) {
        self.link.cut();
    }

    /// What a kernel has to know that takes part in a round of up to [`PLACES`] numbers; `None` where GPUs do not reach each other's
    /// memory.
    pub(in crate::cuda) fn ranks(&self) -> Option<RanksArgs> {
        self.mailboxes.is_some().then(|| self.place())
    }

    /// The same, without mailboxes where there are none.
    pub(in crate::cuda) fn place(&self) -> RanksArgs {
        let mut mailboxes = [DevicePtr::NULL; MAX_RANKS];
        for (to, mailbox) in mailboxes.iter_mut().zip(self.mailboxes.iter().flat_map(|m| m.iter())) {
            *to = mailbox.ptr();
        }
        RanksArgs {
            mailboxes,
            rounds: self.rounds.ptr(),
            cut: self.link.cut_word(),
            rank: self.rank.index as u32,
            n_ranks: self.rank.count as u32,
        }
    }

    /// Whether this many pairs of numbers go through the mailboxes.
    pub(in crate::cuda) fn is_small(&self, n_pairs: usize) -> bool {
        self.mailboxes.is_some() && (2 * n_pairs <= PLACES || !self.link.adds())
    }
}
