//! The search for the points of a codebook that stand for weights (IQ1, IQ2, IQ3).
//!
//! A group of `N` weights becomes one point, whose coordinates are levels such as 8, 25 and 43. A sub-block of groups has one scale, an odd
//! multiple of a unit that its super-block stores. Only some combinations of levels are points: a group is rounded coordinate by coordinate,
//! and where that is no point, the points around it are compared by their weighted error.
//!
//! Each sub-block's scale is searched by itself, at first as if all combinations were points, then with the points near the best scale.
//! Afterwards scales are rounded, each group gets the best point at its rounded scale, and the unit is fitted to all points.

use super::blocks::f16_to_f32;
use super::rounding::f32_to_f16;
use super::symmetric::TINY;

/// Points that are compared where a combination of levels is none.
const N_NEAR: usize = 12;

/// A codebook and what is searched along with its points.
pub(crate) struct Lattice<const N: usize> {
    /// What coordinates may be, ascending.
    levels: &'static [f32],
    /// Halfway between each level and the next.
    borders: Vec<f32>,
    points: Vec<[f32; N]>,
    /// For each combination of levels, the first coordinate's the lowest digit: the points near it, from `starts[i]` to `starts[i + 1]`. A
    /// point has only itself.
    near: Vec<u16>,
    starts: Vec<u32>,
    layout: Layout,
}

/// What the groups of a super-block share.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Weights of a sub-block, which has one scale.
    pub(crate) sub_len: usize,
    /// A scale is `2 * code + 1` units, `code` up to this.
    pub(crate) max_code: u8,
    /// What the super-block stores in place of the unit, divided by it.
    pub(crate) d_per_unit: f32,
    /// What may be added to all coordinates of a point.
    pub(crate) shifts: &'static [f32],
    /// Groups that share a shift.
    pub(crate) shift_groups: usize,
}

/// A group of weights in the codebook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// Index of its point.
    pub(crate) point: u16,
    /// Index of its shift.
    pub(crate) shift: u8,
}

/// A super-block of 256 weights, not yet packed.
pub(crate) struct SuperBlock {
    /// Scale of the scales, f16.
    pub(crate) d: [u8; 2],
    /// The code of each sub-block's scale.
    pub(crate) codes: [u8; 16],
    /// All groups in order.
    pub(crate) groups: [Group; 64],
}

impl<const N: usize> Lattice<N> {
    /// `levels` are ascending, and all coordinates of `points` are among them.
    pub(crate) fn new(
        levels: &'static [f32],
        points: impl Iterator<Item = [f32; N]>,
        layout: Layout,
    ) -> Self {
        let points: Vec<[f32; N]> = points.collect();
        let borders = levels.windows(2).map(|two| (two[0] + two[1]) / 2.0).collect();
        let nearer = |a: &(f32, u16), b: &(f32, u16)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        let (mut near, mut starts) = (Vec::new(), vec![0]);
        let mut by_distance: Vec<(f32, u16)> = Vec::with_capacity(points.len());
        for index in 0..levels.len().pow(N as u32) {
            let cell: [f32; N] =
                std::array::from_fn(|i| levels[index / levels.len().pow(i as u32) % levels.len()]);
            by_distance.clear();
            by_distance.extend((0..).zip(&points).map(|(i, point)| (distance(&cell, point), i)));
            let n = N_NEAR.min(points.len());
            by_distance.select_nth_unstable_by(n - 1, nearer);
            by_distance.truncate(n);
            by_distance.sort_unstable_by(nearer);
            let n = if by_distance[0].0 == 0.0 { 1 } else { n };
            near.extend(by_distance[..n].iter().map(|&(_, i)| i));
            starts.push(near.len() as u32);
        }
        Self { levels, borders, points, near, starts, layout }
    }

    /// Finds scales and points that make the sum of `w * (x - scale * (coordinate + shift))²` small.
    pub(crate) fn encode(&self, x: &[f32; 256], w: &[f32; 256]) -> SuperBlock {
        let Layout { sub_len, max_code, d_per_unit, .. } = self.layout;
        let mut block = SuperBlock { d: [0; 2], codes: [0; 16], groups: [Group::default(); 64] };
        let sub_blocks = || x.chunks_exact(sub_len).zip(w.chunks_exact(sub_len));
        let mut scales = [0.0f32; 16];
        for (scale, (x, w)) in scales.iter_mut().zip(sub_blocks()) {
            *scale = self.fit(x, w, &mut block.groups[..sub_len / N]);
        }
        let largest = scales.iter().fold(0.0, |a: f32, b| a.max(*b));
        if largest < TINY {
            return block;
        }
        let d = f32_to_f16(largest / f32::from(2 * max_code + 1) * d_per_unit);
        let unit = f16_to_f32(d) / d_per_unit;
        let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
        for (s, (x, w)) in sub_blocks().enumerate() {
            block.codes[s] = ((scales[s] / unit) / 2.0).clamp(0.0, f32::from(max_code)) as u8;
            let multiple = f32::from(2 * block.codes[s] + 1);
            let groups = &mut block.groups[s * (sub_len / N)..][..sub_len / N];
            self.choose(x, w, multiple * unit, groups);
            let (xq, qq) = self.sums(x, w, groups);
            sum_xq += multiple * xq;
            sum_qq += multiple * multiple * qq;
        }
        block.d = match sum_xq > 0.0 && sum_qq > 0.0 {
            true => f32_to_f16(sum_xq / sum_qq * d_per_unit),
            false => d,
        };
        block
    }

    /// The best scale of a sub-block; 0 if all weights are. `groups` is room for its points.
    fn fit(&self, x: &[f32], w: &[f32], groups: &mut [Group]) -> f32 {
        let largest = x.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        if !(TINY..f32::INFINITY).contains(&largest) {
            return 0.0;
        }
        // The scale at which the largest weight becomes the largest level.
        let whole = largest / self.levels[self.levels.len() - 1];
        let mut best = Best::default();
        for step in 0..16 {
            best.offer(self.sums_without_points(x, w, whole * 1.25 * 0.9f32.powi(step)));
        }
        let Some(around) = best.scale() else { return 0.0 };
        let mut best = Best::default();
        for step in -3..=3 {
            self.choose(x, w, around * (1.0 + 0.04 * step as f32), groups);
            best.offer(self.sums(x, w, groups));
        }
        for _ in 0..2 {
            let Some(scale) = best.scale() else { return 0.0 };
            self.choose(x, w, scale, groups);
            best.offer(self.sums(x, w, groups));
        }
        best.scale().unwrap_or(0.0)
    }

    /// The sums of [`Lattice::sums`] where every combination of levels is a point, with the best shift for all groups.
    fn sums_without_points(&self, x: &[f32], w: &[f32], scale: f32) -> (f32, f32) {
        let mut best = Best::default();
        for shift in self.layout.shifts {
            let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
            for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
                let v = x.map(|x| x / scale - shift);
                let mut q = [self.levels[0]; 8];
                for (border, level) in self.borders.iter().zip(&self.levels[1..]) {
                    for (q, v) in q.iter_mut().zip(&v) {
                        *q = if *v >= *border { *level } else { *q };
                    }
                }
                for i in 0..8 {
                    let q = q[i] + shift;
                    sum_xq += w[i] * x[i] * q;
                    sum_qq += w[i] * q * q;
                }
            }
            best.offer((sum_xq, sum_qq));
        }
        best.sums
    }

    /// The best points at a scale.
    fn choose(&self, x: &[f32], w: &[f32], scale: f32, groups: &mut [Group]) {
        let Layout { shifts, shift_groups, .. } = self.layout;
        let runs = x.chunks_exact(N * shift_groups).zip(w.chunks_exact(N * shift_groups));
        let mut trial = [Group::default(); 8];
        for ((x, w), groups) in runs.zip(groups.chunks_exact_mut(shift_groups)) {
            let mut least = f32::INFINITY;
            for (index, shift) in shifts.iter().enumerate() {
                let mut error = 0.0;
                for ((x, w), group) in x.as_chunks::<N>().0.iter().zip(w.as_chunks::<N>().0).zip(&mut trial) {
                    let (point, e) = self.nearest(&x.map(|x| x - scale * shift), w, scale);
                    *group = Group { point, shift: index as u8 };
                    error += e;
                }
                if error < least || index == 0 {
                    least = error;
                    groups.copy_from_slice(&trial[..shift_groups]);
                }
            }
        }
    }

    /// The point that makes the sum of `w * (x - scale * coordinate)²` small, and this sum.
    #[inline]
    fn nearest(&self, x: &[f32; N], w: &[f32; N], scale: f32) -> (u16, f32) {
        let per_unit = 1.0 / scale;
        let digit =
            |x: f32| self.borders.iter().map(|border| usize::from(x * per_unit >= *border)).sum::<usize>();
        let cell = x.iter().rev().fold(0, |cell, x| cell * self.levels.len() + digit(*x));
        let near = &self.near[self.starts[cell] as usize..self.starts[cell + 1] as usize];
        let mut best = (near[0], f32::INFINITY);
        for &index in near {
            let point = &self.points[usize::from(index)];
            let mut error = 0.0;
            for i in 0..N {
                let e = x[i] - scale * point[i];
                error += w[i] * e * e;
            }
            if error < best.1 {
                best = (index, error);
            }
        }
        best
    }

    /// `Σ w x q` and `Σ w q²` for the coordinates `q` of the points, shifts included.
    fn sums(&self, x: &[f32], w: &[f32], groups: &[Group]) -> (f32, f32) {
        let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
        for ((x, w), group) in x.as_chunks::<N>().0.iter().zip(w.as_chunks::<N>().0).zip(groups) {
            let point = &self.points[usize::from(group.point)];
            let shift = self.layout.shifts[usize::from(group.shift)];
            for i in 0..N {
                let q = point[i] + shift;
                sum_xq += w[i] * x[i] * q;
                sum_qq += w[i] * q * q;
            }
        }
        (sum_xq, sum_qq)
    }
}

/// The sums `Σ w x q` and `Σ w q²` of the best coordinates so far. Their best scale is the quotient, which lowers the error by
/// `(Σ w x q)² / Σ w q²`.
#[derive(Clone, Copy, Default)]
struct Best {
    sums: (f32, f32),
    gain: f32,
}

impl Best {
    fn offer(&mut self, (sum_xq, sum_qq): (f32, f32)) {
        let gain = sum_xq * (sum_xq / sum_qq);
        if sum_xq > 0.0 && gain > self.gain {
            *self = Self { sums: (sum_xq, sum_qq), gain };
        }
    }

    fn scale(self) -> Option<f32> {
        (self.gain > 0.0).then(|| self.sums.0 / self.sums.1)
    }
}

fn distance<const N: usize>(a: &[f32; N], b: &[f32; N]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}
