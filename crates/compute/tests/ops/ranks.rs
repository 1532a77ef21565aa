//! What several devices do together, against plain sums and copies: CPU backends on threads, GPUs where there are several, and else
//! emulated ones that write to each other's memory.

use super::matrices::part;
use super::*;
use realizar_compute::{Activation, BlockInput, BlockOutput, FfnBlock, FfnUp, Join, Linear, Stream};

/// Runs `f` on every rank, each on a thread of its own, and gives what each returned.
fn on_all<B: Backend, T: Send>(ranks: &[B], f: impl Fn(&B, usize) -> T + Sync) -> Vec<T> {
    let f = &f;
    std::thread::scope(|scope| {
        let run = |(i, b)| scope.spawn(move || f(b, i));
        let threads: Vec<_> = ranks.iter().enumerate().map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[cfg(feature = "cuda")]
fn gpu_exists() -> bool {
    Cuda::new(CudaOptions { device: 0, mode: Mode::Fast }).is_ok()
}

/// Groups of devices to test: CPUs always.
#[allow(clippy::print_stderr)]
fn for_each_group(check: &mut dyn FnMut(Group<'_>)) {
    for count in [2, 3, 4] {
        check(Group::Cpus(&Cpu::group(count, CpuOptions { n_threads: 1, ..CpuOptions::default() })));
    }
    #[cfg(feature = "cuda")]
    {
        for devices in [&[0, 1][..], &[0, 1, 2]] {
            let gpus = match (gpu_exists(), Cuda::group(devices, Mode::Fast)) {
                (_, Ok(gpus)) => Some(gpus),
                (false, Err(_)) => emulation::group(devices.len())
                    .map(|(drivers, link)| Cuda::group_on(drivers, link, Mode::Fast).unwrap()),
                (true, Err(e)) => {
                    eprintln!("not tested on {} GPUs: {e}", devices.len());
                    None
                }
            };
            if let Some(gpus) = gpus {
                check(Group::Gpus(&gpus));
            }
        }
    }
}

enum Group<'a> {
    Cpus(&'a [Cpu]),
    #[cfg(feature = "cuda")]
    Gpus(&'a [Cuda]),
}

/// Numbers that each rank brings, and what all of them must get.
struct Parts {
    parts: Vec<Vec<f32>>,
    sum: Vec<f32>,
}

fn parts(seed: u64, count: usize, n: usize) -> Parts {
    let mut random = Random(seed);
    let parts: Vec<Vec<f32>> = (0..count).map(|_| random.normals(n)).collect();
    let mut sum = parts[0].clone();
    for part in &parts[1..] {
        sum.iter_mut().zip(part).for_each(|(s, x)| *s += x);
    }
    Parts { parts, sum }
}

/// NCCL adds in an order of its own; all else in the order of ranks.
fn check_sum(what: &str, got: &[f32], want: &[f32], first: &[f32]) {
    assert_eq!(bits(got), bits(first), "{what}: other bits than on the first rank");
    let error = normalized_squared_error(got, want);
    assert!(error < 1e-12, "{what}: {error}");
}

fn sums<B: Backend>(ranks: &[B]) {
    let count = ranks.len();
    // The last is more than mailboxes hold at once.
    for (round, (rows, len)) in [(1, 1), (3, 5), (1, 4096), (7, 1001), (3, 70_000)].into_iter().enumerate() {
        let Parts { parts, sum } = parts(round as u64, count, rows * len);
        let start = Random(99).normals(rows * len);
        let got = on_all(ranks, |b, i| {
            let mut x = rows_of(b, &parts[i], len);
            b.all_reduce(&mut x).unwrap();
            let mut again = rows_of(b, &parts[i], len);
            let mut y = rows_of(b, &start, len);
            b.all_reduce_add(&mut y, &mut again).unwrap();
            (read(b, &mut x), read(b, &mut y))
        });
        let added: Vec<f32> = start.iter().zip(&sum).map(|(a, b)| a + b).collect();
        for (i, (x, y)) in got.iter().enumerate() {
            let what = format!("rank {i} of {count} {}, {rows} rows of {len}", ranks[0].name());
            check_sum(&what, x, &sum, &got[0].0);
            check_sum(&what, y, &added, &got[0].1);
        }
    }
}

fn gathers<B: Backend>(ranks: &[B]) {
    let count = ranks.len();
    for (round, (rows, widths)) in
        [(1, [1, 2, 3, 1]), (5, [4, 0, 7, 3]), (2, [513, 1026, 511, 40]), (9, [20_000, 19_999, 3, 8])]
            .into_iter()
            .enumerate()
    {
        let widths = &widths[..count];
        let starts: Vec<usize> = (0..=count).map(|i| widths[..i].iter().sum()).collect();
        let n = starts[count];
        let whole = Random(round as u64).normals(rows * n);
        let got = on_all(ranks, |b, i| {
            let columns = starts[i]..starts[i + 1];
            let part: Vec<f32> =
                whole.chunks_exact(n).flat_map(|row| row[columns.clone()].to_vec()).collect();
            let mut x = b.upload(&[rows, columns.len()], &part).unwrap();
            x.set_rows(rows);
            let mut y = poisoned(b, rows, n);
            b.all_gather(&mut y, &x, &starts).unwrap();
            read(b, &mut y)
        });
        for (i, y) in got.iter().enumerate() {
            // Zeros may lose their sign where they are gathered as sums.
            assert!(*y == whole, "rank {i} of {count} {}, {rows} rows of {widths:?}", ranks[0].name());
        }
    }
}

#[test]
fn sums_over_ranks_are_the_same_everywhere() {
    for_each_group(&mut |group| match group {
        Group::Cpus(ranks) => sums(ranks),
        #[cfg(feature = "cuda")]
        Group::Gpus(ranks) => sums(ranks),
    });
}

#[test]
fn columns_of_all_ranks_come_side_by_side() {
    for_each_group(&mut |group| match group {
        Group::Cpus(ranks) => gathers(ranks),
        #[cfg(feature = "cuda")]
        Group::Gpus(ranks) => gathers(ranks),
    });
}

/// Blocks whose last matmul each rank has columns of, again and again, between sums of other sizes.
fn products<B: Backend>(ranks: &[B]) {
    let count = ranks.len();
    for (dtype, n_out, rows) in [
        (DType::Q4_K, 300, 1),
        (DType::Q8_0, 2050, 1),
        (DType::BF16, 77, 1),
        (DType::Q4_K, 300, 3),
        (DType::Q4_0, 64, 20),
        (DType::F32, 64, 2),
    ] {
        let n_in = |rank: usize| 256 * (1 + (rank + 1) % 3);
        let up = |rank: usize| part(DType::F32, 1, n_in(rank), n_out, 60 + rank as u64);
        let weights = |rank: usize| part(dtype, 1, n_out, n_in(rank), 3 + rank as u64);
        let (start, bias) = (Random(9).normals(rows * n_out), Random(5).normals(n_out));
        let mut want = start.clone();
        for rank in 0..count {
            let b = &Reference;
            let w = b.matrix(vec![weights(rank)]).unwrap();
            let bias = (rank == 0).then(|| vector(b, &bias));
            let (mut x, mut product) = (poisoned(b, rows, n_in(rank)), poisoned(b, rows, n_out));
            let up = b.matrix(vec![up(rank)]).unwrap();
            b.matmul(&mut x, &rows_of(b, &start, n_out), &up, None).unwrap();
            b.activate(&mut x, Activation::Relu).unwrap();
            b.matmul(&mut product, &x, &w, bias.as_ref()).unwrap();
            want.iter_mut().zip(read(b, &mut product)).for_each(|(y, x)| *y += x);
        }
        let got = on_all(ranks, |b, rank| {
            let proj = &Linear {
                bias: (rank == 0).then(|| vector(b, &bias)),
                ..Linear::bare(b.matrix(vec![weights(rank)]).unwrap())
            };
            let up = &Linear::bare(b.matrix(vec![up(rank)]).unwrap());
            let again = |_| {
                let mut y = rows_of(b, &start, n_out);
                let stream = Stream {
                    residual: &mut y,
                    normed: &mut poisoned(b, rows, n_out),
                    output: &mut poisoned(b, rows, n_out),
                    operand: None,
                };
                let block = FfnBlock {
                    input: BlockInput::Residual,
                    up: FfnUp::Plain { up },
                    activation: Activation::Relu,
                    out: BlockOutput {
                        sub_norm: None,
                        proj,
                        post_norm: None,
                        sum_norm: None,
                        join: Join::Sum,
                    },
                    hidden: &mut poisoned(b, rows, n_in(rank)),
                };
                b.feed_forward(stream, block).unwrap();
                b.all_reduce(&mut rows_of(b, &[1.0, 2.0, 3.0], 3)).unwrap();
                read(b, &mut y)
            };
            (0..5).map(again).collect::<Vec<_>>()
        });
        for (rank, (y, i)) in
            got.iter().enumerate().flat_map(|(rank, all)| all.iter().zip(0..).map(move |y| (rank, y)))
        {
            let what = format!("{dtype}, {rows} rows, time {i}, rank {rank} of {count} {}", ranks[0].name());
            assert_eq!(bits(y), bits(&got[0][0]), "{what}: other bits than on the first rank");
            let error = normalized_squared_error(y, &want);
            assert!(
                error < tolerance(dtype, Sums::FastGpu).max(tolerance(dtype, Sums::FastCpu)),
                "{what}: {error}"
            );
        }
    }
}

#[test]
fn products_of_all_ranks_are_added() {
    for_each_group(&mut |group| match group {
        Group::Cpus(ranks) => products(ranks),
        #[cfg(feature = "cuda")]
        Group::Gpus(ranks) => products(ranks),
    });
}

fn leaves<B: Backend>(ranks: &[B]) {
    let got = on_all(ranks, |b, i| {
        if i == 0 {
            b.leave();
            return Err("gone".to_owned());
        }
        let mut x = rows_of(b, &[1.0, 2.0], 2);
        let first = b.all_reduce(&mut x);
        // What was enqueued before the others left ends, and what comes after fails.
        let waited = b.synchronize();
        first.and(waited).and_then(|()| b.all_reduce(&mut x)).map_err(|e| e.to_string())
    });
    for (i, outcome) in got.into_iter().enumerate().skip(1) {
        let error = outcome.expect_err("a sum without the first rank");
        assert!(error.contains("has failed"), "rank {i}: {error}");
    }
}

#[test]
fn nobody_waits_for_a_rank_that_left() {
    for_each_group(&mut |group| match group {
        Group::Cpus(ranks) => leaves(ranks),
        #[cfg(feature = "cuda")]
        Group::Gpus(ranks) => leaves(ranks),
    });
}
