//! Collectives of several GPUs.
//!
//! Small tensors go straight to the other GPUs' memory, where these can be reached; what is larger goes through the
//! [`Link`](super::driver::Link).

use super::driver::{Cuda, DevicePtr, MAX_RANKS, Member, PLACES, RanksArgs, kernel_args, kernels};
use super::elementwise;
use crate::{Result, Tensor};

/// Threads of a block, and pairs of numbers that it sends.
const THREADS: usize = 256;
const BLOCK_PAIRS: usize = 512;

kernel_args! {
    in "collective_args.cuh";
    include "../common/ranks.cuh";

    struct CollectiveArgs {
        ranks: RanksArgs as "ranks::Ranks",
        y: DevicePtr as "float*",
        x: DevicePtr as "const float*",
        /// first column of each GPU in y, and the number of columns
        starts: [u32; MAX_RANKS + 1],
        /// numbers, or rows
        n: u32,
        /// pair of the first block
        first: u32,
        /// of rows in pairs; as wide as the widest GPU's columns
        width: u32,
        /// whether the sum is added to y
        add: u32,
    }
}

kernels! {
    /// Kernels of ranks.cu.
    pub(in crate::cuda) struct Kernels in ranks {
        all_reduce: CollectiveArgs,
        all_gather: CollectiveArgs,
        spread_columns: CollectiveArgs,
    }
}

fn kernels(cuda: &Cuda) -> &Kernels {
    cuda.room()
}

fn collective_args(member: &Member, y: DevicePtr, x: DevicePtr) -> CollectiveArgs {
    CollectiveArgs {
        ranks: member.place(),
        y,
        x,
        starts: [0; MAX_RANKS + 1],
        n: 0,
        first: 0,
        width: 0,
        add: 0,
    }
}

/// `y = sum of every x`, or `y += sum`; `y` may be `x`.
fn sum_to(cuda: &Cuda, member: &Member, y: DevicePtr, x: DevicePtr, n: usize, add: bool) -> Result<()> {
    let n_pairs = n.div_ceil(2);
    for first in (0..n_pairs).step_by(PLACES / 2) {
        let n_blocks = (n_pairs - first).min(PLACES / 2).div_ceil(BLOCK_PAIRS);
        let args = CollectiveArgs {
            n: n as u32,
            first: first as u32,
            add: u32::from(add),
            ..collective_args(member, y, x)
        };
        // SAFETY: x and y hold n numbers, and every mailbox has room for the packets of so many blocks of every rank.
        unsafe { cuda.launch(kernels(cuda).all_reduce, [n_blocks, 1, 1], THREADS as u32, &args)? };
    }
    Ok(())
}

pub(in crate::cuda) fn all_reduce(cuda: &Cuda, x: &mut Tensor<Cuda>) -> Result<()> {
    let Some(member) = &cuda.member else { return Ok(()) };
    member.check()?;
    let n = x.len();
    match member.is_small(n.div_ceil(2)) {
        true => sum_to(cuda, member, x.ptr(), x.ptr(), n, false),
        // SAFETY: the tensor holds n numbers.
        false => unsafe { member.link.all_reduce(member.rank.index, x.ptr(), n) },
    }
}

pub(in crate::cuda) fn all_reduce_add(cuda: &Cuda, y: &mut Tensor<Cuda>, x: &mut Tensor<Cuda>) -> Result<()> {
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
    elementwise::add(cuda, y, x)
}

pub(in crate::cuda) fn all_gather(
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
    let mut args = CollectiveArgs { n: rows as u32, ..collective_args(member, y.ptr(), x.ptr()) };
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
            cuda.launch(kernels(cuda).spread_columns, [blocks, 1, 1], THREADS as u32, &args)?;
            return member.link.all_reduce(rank, y.ptr(), y.len());
        }
    }
    args.width = width as u32;
    for first in (0..n_pairs).step_by(PLACES / 2) {
        let n_blocks = (n_pairs - first).min(PLACES / 2).div_ceil(BLOCK_PAIRS);
        args.first = first as u32;
        // SAFETY: x and y have the shapes that were checked; mailboxes as for sums.
        unsafe { cuda.launch(kernels(cuda).all_gather, [n_blocks, 1, 1], THREADS as u32, &args)? };
    }
    Ok(())
}
