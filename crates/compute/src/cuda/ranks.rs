//! Launches of what several GPUs do together.
//!
//! Small tensors go straight to the other GPUs' memory, where these can be reached; what is larger goes through the [`Link`].

use super::buffer::Buffer;
use super::driver::{DevicePtr, Driver, Link};
use super::{Cuda, CudaOptions, elementwise, gpu_link};
use crate::{Error, Rank, Result, Tensor};
use std::sync::Arc;

/// GPUs that can work together.
pub const MAX_RANKS: usize = 8;
/// Numbers of a round, and blocks of a kernel that takes part in one, at most; ranks.cuh has the same.
pub(super) const PLACES: usize = 1 << 17;
pub(super) const MAX_BLOCKS: usize = 1024;
/// Threads of a block, and pairs of numbers that it sends.
const THREADS: usize = 256;
const BLOCK_PAIRS: usize = 512;

/// A GPU's place among the others, as kernels know it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RanksArgs {
    mailboxes: [DevicePtr; MAX_RANKS],
    rounds: DevicePtr,
    cut: DevicePtr,
    rank: u32,
    n_ranks: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    ranks: RanksArgs,
    y: DevicePtr,
    x: DevicePtr,
    starts: [u32; MAX_RANKS + 1],
    n: u32,
    first: u32,
    width: u32,
    add: u32,
}

/// One GPU's place among those that work together.
pub(super) struct Member {
    pub(super) rank: Rank,
    link: Arc<dyn Link>,
    /// Everybody's; `None` where GPUs do not reach each other's memory.
    mailboxes: Option<Arc<Vec<Buffer>>>,
    /// The number of rounds so far, for each block that reads it.
    rounds: Buffer,
}

impl Cuda {
    /// GPUs that share a model, one rank each, in this order.
    ///
    /// Errors: as [`Cuda::new`] for each; `Device` for a number that occurs twice, for more than eight, without NCCL.
    pub fn group(devices: &[usize], exact: bool) -> Result<Vec<Self>> {
        if let &[device] = devices {
            return Ok(vec![Self::new(CudaOptions { device, exact })?]);
        }
        let (drivers, link) = gpu_link::open(devices)?;
        Self::group_on(drivers, link, exact)
    }

    /// The same on other drivers; for tests.
    pub fn group_on(drivers: Vec<Arc<dyn Driver>>, link: Arc<dyn Link>, exact: bool) -> Result<Vec<Self>> {
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
        let member = |(index, driver): (usize, Arc<dyn Driver>)| {
            let rounds = zeros(&driver, 4 * MAX_BLOCKS, "counts of rounds")?;
            let mailboxes = mailboxes.clone();
            let member = Member { rank: Rank { index, count }, link: link.clone(), mailboxes, rounds };
            Self::with_member(driver, exact, Some(member))
        };
        drivers.into_iter().enumerate().map(member).collect()
    }
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
    /// Errors: `Device` after a GPU has left.
    pub(super) fn check(&self) -> Result<()> {
        match self.link.is_cut() {
            false => Ok(()),
            true => Err(Error::Device {
                device: format!("CUDA rank {}", self.rank.index),
                message: "another GPU that shares the model has failed".into(),
            }),
        }
    }

    pub(super) fn leave(&self) {
        self.link.cut();
    }

    /// What a kernel has to know that takes part in a round of up to [`PLACES`] numbers; `None` where GPUs do not reach each other's
    /// memory.
    pub(super) fn ranks(&self) -> Option<RanksArgs> {
        self.mailboxes.is_some().then(|| self.place())
    }

    /// The same, without mailboxes where there are none.
    fn place(&self) -> RanksArgs {
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

    fn args(&self, y: DevicePtr, x: DevicePtr) -> Args {
        Args { ranks: self.place(), y, x, starts: [0; MAX_RANKS + 1], n: 0, first: 0, width: 0, add: 0 }
    }

    /// Whether this many pairs of numbers go through the mailboxes.
    fn is_small(&self, n_pairs: usize) -> bool {
        self.mailboxes.is_some() && (2 * n_pairs <= PLACES || !self.link.adds())
    }
}

/// `y = sum of every x`, or `y += sum`; `y` may be `x`.
fn sum_to(cuda: &Cuda, member: &Member, y: DevicePtr, x: DevicePtr, n: usize, add: bool) -> Result<()> {
    let n_pairs = n.div_ceil(2);
    for first in (0..n_pairs).step_by(PLACES / 2) {
        let n_blocks = (n_pairs - first).min(PLACES / 2).div_ceil(BLOCK_PAIRS);
        let args = Args { n: n as u32, first: first as u32, add: u32::from(add), ..member.args(y, x) };
        // SAFETY: x and y hold n numbers, and every mailbox has room for the packets of so many blocks of every rank.
        unsafe { cuda.launch(cuda.kernels.all_reduce, [n_blocks, 1, 1], THREADS as u32, &args)? };
    }
    Ok(())
}

pub(super) fn all_reduce(cuda: &Cuda, x: &mut Tensor<Cuda>) -> Result<()> {
    let Some(member) = &cuda.member else { return Ok(()) };
    member.check()?;
    let n = x.len();
    match member.is_small(n.div_ceil(2)) {
        true => sum_to(cuda, member, x.ptr(), x.ptr(), n, false),
        // SAFETY: the tensor holds n numbers.
        false => unsafe { member.link.all_reduce(member.rank.index, x.ptr(), n) },
    }
}

pub(super) fn all_reduce_add(cuda: &Cuda, y: &mut Tensor<Cuda>, x: &mut Tensor<Cuda>) -> Result<()> {
    assert_eq!(y.shape(), x.shape());
    if let Some(member) = &cuda.member {
        member.check()?;
        let n = x.len();
        if member.is_small(n.div_ceil(2)) {
            return sum_to(cuda, member, y.ptr(), x.ptr(), n, true);
        }
        // SAFETY: the tensor holds n numbers.
        unsafe { member.link.all_reduce(member.rank.index, x.ptr(), n)? };
    }
    elementwise::each(cuda, cuda.kernels.add, y, Some(x), None, 0.0)
}

pub(super) fn all_gather(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    starts: &[usize],
) -> Result<()> {
    let member = cuda.member.as_ref().expect("a GPU alone has nothing to gather");
    member.check()?;
    let (rows, n_columns, rank) = (y.rows(), y.row_len(), member.rank.index);
    assert_eq!((starts.len(), starts.last()), (member.rank.count + 1, Some(&n_columns)));
    assert_eq!((rows, x.row_len()), (x.rows(), starts[rank + 1] - starts[rank]));
    let mut args = Args { n: rows as u32, ..member.args(y.ptr(), x.ptr()) };
    for (to, &from) in args.starts.iter_mut().zip(starts) {
        *to = from as u32;
    }
    let width = starts.windows(2).map(|s| (s[1] - s[0]).div_ceil(2)).max().unwrap_or(0);
    let n_pairs = rows * width;
    if !member.is_small(n_pairs) {
        // The sum with everybody else's zeros is a number itself.
        let blocks = (rows * n_columns).div_ceil(THREADS);
        // SAFETY: x and y have the shapes that were checked.
        unsafe {
            cuda.launch(cuda.kernels.spread_columns, [blocks, 1, 1], THREADS as u32, &args)?;
            return member.link.all_reduce(rank, y.ptr(), y.len());
        }
    }
    args.width = width as u32;
    for first in (0..n_pairs).step_by(PLACES / 2) {
        let n_blocks = (n_pairs - first).min(PLACES / 2).div_ceil(BLOCK_PAIRS);
        args.first = first as u32;
        // SAFETY: x and y have the shapes that were checked; mailboxes as for sums.
        unsafe { cuda.launch(cuda.kernels.all_gather, [n_blocks, 1, 1], THREADS as u32, &args)? };
    }
    Ok(())
}
