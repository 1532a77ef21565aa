//! What the emulation of Hopper's instructions does, against what the PTX ISA says of them, written down here in other terms: where
//! matrices lie in shared memory is said line by line, and the results are plain sums of products.
//!
//! Small kernels (cuda-emulation/checks.cu) run on the emulated GPU. Numbers are small integers, so that all results are exact.

use super::Random;
use super::emulation::Emulation;
use half::{bf16, f16};
use realizar_compute::cuda::driver::{BoxMap, Boxes, DevicePtr, Driver, Grid, Image};
use std::sync::Arc;

static CHECKS: Image = Image { name: "checks", bytes: &[] };

/// Memory of the device, given back at the end.
struct Memory<'a> {
    driver: &'a Arc<dyn Driver>,
    ptr: DevicePtr,
    bytes: usize,
}

impl<'a> Memory<'a> {
    fn new(driver: &'a Arc<dyn Driver>, contents: &[u8]) -> Self {
        let ptr = driver.allocate(contents.len(), "a check").unwrap();
        // SAFETY: it has as many bytes.
        unsafe { driver.write(ptr, contents).unwrap() };
        Self { driver, ptr, bytes: contents.len() }
    }

    fn read(&self) -> Vec<u8> {
        let mut contents = vec![0; self.bytes];
        // SAFETY: it has as many bytes.
        unsafe { self.driver.read(&mut contents, self.ptr).unwrap() };
        contents
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `new`, and kernels end before their launch returns.
        unsafe { self.driver.free(self.ptr) };
    }
}

fn launch<A>(driver: &Arc<dyn Driver>, name: &str, blocks: [u32; 3], threads: u32, cluster: u32, args: &A) {
    let shared_bytes = 32 << 10;
    let f = driver.function(&CHECKS, name, shared_bytes).unwrap();
    let grid = Grid { blocks, threads, shared_bytes, cluster };
    // SAFETY: the callers give the kernel's struct, with memory as large as it says.
    unsafe { driver.launch(f, grid, std::ptr::from_ref(args).cast()).unwrap() };
}

fn small(random: &mut Random) -> i32 {
    random.below(9) as i32 - 4
}

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    F16,
    Bf16,
    S8,
    /// Of the first operand, without signs; the second one has them.
    U8,
}

impl Number {
    fn bytes(self, x: i32) -> Vec<u8> {
        match self {
            Self::F16 => f16::from_f32(x as f32).to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f32(x as f32).to_le_bytes().to_vec(),
            Self::S8 | Self::U8 => vec![x as u8],
        }
    }

    fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8)
    }

    /// Columns of a product: 32 bytes.
    fn k(self) -> usize {
        if self.is_integer() { 32 } else { 16 }
    }
}

/// The vector of 16 bytes, by its number in memory, where vector `v` of line `line` is when lines of `vectors` vectors are swizzled: in each
/// 128 bytes there are one, two or four lines, and whatever is in the same 128 bytes is permuted alike: vectors take the number that the
/// exclusive or with that of the 128 bytes gives. Lines of one vector stay where they are.
fn vector_of(line: usize, v: usize, vectors: usize) -> usize {
    let of_128 = match vectors {
        8 => line % 8,
        4 => line / 2 % 4,
        2 => line / 4 % 2,
        _ => 0,
    };
    line * vectors + (v ^ of_128)
}

/// A description's bits: bytes to the next matrices along the leading and the strided dimension, and the swizzle's number.
fn description(leading: usize, stride: usize, vectors: usize) -> u64 {
    let swizzle = match vectors {
        8 => 1,
        4 => 2,
        2 => 3,
        _ => 0,
    };
    (leading as u64 / 16) << 16 | (stride as u64 / 16) << 32 | swizzle << 62
}

/// Shared memory with a matrix `[rows, 32 bytes]` in lines of `vectors` vectors, from vector `first` of each line on. Its description, and
/// where it begins.
fn rows_in_lines(image: &mut Vec<u8>, rows: &[Vec<u8>], vectors: usize, first: usize) -> (u64, u32) {
    let start = image.len();
    assert_eq!(start % 1024, 0);
    if vectors == 1 {
        // Matrices of 8 rows and 16 bytes, of the second 16 bytes after all of the first.
        let leading = rows.len() * 16;
        image.resize(start + 2 * leading, 0xee);
        for (r, row) in rows.iter().enumerate() {
            for v in 0..2 {
                let at = start + v * leading + r * 16;
                image[at..at + 16].copy_from_slice(&row[16 * v..16 * v + 16]);
            }
        }
        return (description(leading, 128, 1), start as u32);
    }
    image.resize(start + rows.len() * vectors * 16, 0xee);
    for (r, row) in rows.iter().enumerate() {
        for v in 0..2 {
            let at = start + 16 * vector_of(r, first + v, vectors);
            image[at..at + 16].copy_from_slice(&row[16 * v..16 * v + 16]);
        }
    }
    (description(16, 8 * vectors * 16, vectors), (start + 16 * first) as u32)
}

/// The same of a matrix `[16, 64]` of 16 bits whose rows are contiguous: each line has as many columns as it has room for.
fn columns_in_lines(image: &mut Vec<u8>, rows: &[Vec<u8>], vectors: usize) -> (u64, u32) {
    let start = image.len();
    assert_eq!(start % 1024, 0);
    let pieces = 8 / vectors;
    // 16 lines of the first columns, then of the next; without a swizzle 8 lines of each 8 columns, then the next 8 lines of all.
    image.resize(start + 16 * 128, 0xee);
    for (k, row) in rows.iter().enumerate() {
        for v in 0..8 {
            let (piece, within) = (v / vectors, v % vectors);
            let at = match vectors {
                1 => (k / 8 * 8 + v) * 8 + k % 8,
                _ => piece * 16 * vectors + vector_of(k, within, vectors),
            };
            image[start + 16 * at..start + 16 * at + 16].copy_from_slice(&row[16 * v..16 * v + 16]);
        }
    }
    let described = match vectors {
        1 => description(1024, 128, 1),
        _ => description(if pieces > 1 { 16 * vectors * 16 } else { 0 }, 8 * vectors * 16, vectors),
    };
    (described, start as u32)
}

#[repr(C)]
struct CheckProduct {
    image: DevicePtr,
    registers: DevicePtr,
    d: DevicePtr,
    a: u64,
    b: u64,
    image_bytes: u32,
    a_at: u32,
    b_at: u32,
    product: u32,
    adds: u32,
}

/// One product of `[64, K]` and `[K, 64]`.
#[derive(Clone, Copy, Debug)]
struct Product {
    number: Number,
    vectors: usize,
    /// The vector of a line with which K begins.
    first: usize,
    in_registers: bool,
    /// Whether rows of the second operand are contiguous.
    b_rows: bool,
    adds: bool,
}

impl Product {
    fn code(self) -> u32 {
        match (self.number, self.in_registers, self.b_rows) {
            (Number::F16, false, false) => 0,
            (Number::Bf16, false, false) => 1,
            (Number::S8, false, false) => 2,
            (Number::F16, true, false) => 3,
            (Number::Bf16, true, false) => 4,
            (Number::F16, true, true) => 5,
            (Number::S8, true, false) => 6,
            (Number::U8, true, false) => 7,
            _ => panic!("{self:?} has no kernel"),
        }
    }

    fn check(self, driver: &Arc<dyn Driver>, random: &mut Random) {
        let k = self.number.k();
        let mut matrix =
            || (0..64).map(|_| (0..k).map(|_| small(random)).collect::<Vec<_>>()).collect::<Vec<_>>();
        // a[row][k] and b[column][k].
        let (mut a, b) = (matrix(), matrix());
        if self.number == Number::U8 {
            // Above what has a sign.
            a.iter_mut().flatten().for_each(|x| *x += 200);
        }
        let line = |row: &Vec<i32>| row.iter().flat_map(|&x| self.number.bytes(x)).collect::<Vec<u8>>();
        let mut image = Vec::new();
        let (a_description, a_at) =
            rows_in_lines(&mut image, &a.iter().map(line).collect::<Vec<_>>(), self.vectors, self.first);
        image.resize(image.len().next_multiple_of(1024), 0xee);
        let (b_description, b_at) = if self.b_rows {
            let rows: Vec<Vec<i32>> = (0..k).map(|k| b.iter().map(|column| column[k]).collect()).collect();
            columns_in_lines(&mut image, &rows.iter().map(line).collect::<Vec<_>>(), self.vectors)
        } else {
            rows_in_lines(&mut image, &b.iter().map(line).collect::<Vec<_>>(), self.vectors, self.first)
        };
        // Register r of lane 4 g + t of warp w has two numbers: of row 16 w + g, or 8 further down if r is odd, columns 2 t and 2 t + 1,
        // or 8 further right if r is 2 or 3. Of bytes it has four: columns 4 t to 4 t + 3, or 16 further right.
        let n = k / 8;
        let registers = (0..128 * 4).flat_map(|i| {
            let (thread, r) = (i / 4, i % 4);
            let (row, column) =
                (thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8, thread % 4 * n + r / 2 * 4 * n);
            a[row][column..column + n].iter().flat_map(|&x| self.number.bytes(x)).collect::<Vec<_>>()
        });
        let registers: Vec<u8> = registers.collect();
        // d[thread][j][c]: row 16 w + g, or 8 further down if c is 2 or 3; column 8 j + 2 t, and one further if c is odd.
        let place = |i: usize| {
            let (thread, j, c) = (i / 32, i / 4 % 8, i % 4);
            (thread / 32 * 16 + thread % 32 / 4 + c / 2 * 8, 8 * j + thread % 4 * 2 + c % 2)
        };
        let word = |x: i32| if self.number.is_integer() { x as u32 } else { (x as f32).to_bits() };
        let before: Vec<i32> = (0..128 * 32).map(|i| i % 7).collect();
        let d: Vec<u8> = before.iter().flat_map(|&x| word(x).to_le_bytes()).collect();
        let [image, registers, d] = [&image, &registers, &d].map(|bytes| Memory::new(driver, bytes));
        let args = CheckProduct {
            image: image.ptr,
            registers: registers.ptr,
            d: d.ptr,
            a: a_description,
            b: b_description,
            image_bytes: image.bytes as u32,
            a_at,
            b_at,
            product: self.code(),
            adds: u32::from(self.adds),
        };
        launch(driver, "check_product", [1; 3], 128, 1, &args);
        for (i, got) in d.read().chunks_exact(4).enumerate() {
            let (row, column) = place(i);
            let sum: i32 = a[row].iter().zip(&b[column]).map(|(x, y)| x * y).sum();
            let want = word(sum + if self.adds { before[i] } else { 0 });
            assert_eq!(u32::from_le_bytes(got.try_into().unwrap()), want, "{self:?} at ({row}, {column})");
        }
    }
}

#[test]
fn emulated_products_of_four_warps_are_sums_of_products() {
    let Some(driver) = Emulation::build_hopper() else { return };
    let random = &mut Random(1);
    for number in [Number::F16, Number::Bf16, Number::S8, Number::U8] {
        for vectors in [1, 2, 4, 8] {
            for first in (0..vectors).step_by(2) {
                for adds in [false, true] {
                    let product =
                        Product { number, vectors, first, in_registers: false, b_rows: false, adds };
                    if number != Number::U8 {
                        product.check(&driver, random);
                    }
                    Product { in_registers: true, ..product }.check(&driver, random);
                    if number == Number::F16 && first == 0 {
                        Product { in_registers: true, b_rows: true, ..product }.check(&driver, random);
                    }
                }
            }
        }
    }
}

#[repr(C)]
struct CheckBox {
    image: DevicePtr,
    coordinates: [i32; 5],
    bytes: u32,
    map: BoxMap,
}

/// What a box brings, line by line; `row(line)` names the row of memory that it is of.
fn check_box(
    driver: &Arc<dyn Driver>,
    boxes: Boxes,
    contents: &[u8],
    coordinates: [i32; 5],
    row: impl Fn(usize) -> i64,
) {
    let bytes = boxes.box_rows * boxes.box_bytes;
    let image = Memory::new(driver, &vec![0xee; bytes]);
    let map = driver.box_map(boxes).unwrap();
    launch(
        driver,
        "check_box",
        [1; 3],
        32,
        1,
        &CheckBox { image: image.ptr, coordinates, bytes: bytes as u32, map },
    );
    let got = image.read();
    let vectors = boxes.box_bytes / 16;
    for line in 0..boxes.box_rows {
        for byte in 0..boxes.box_bytes {
            let (row, column) = (row(line), i64::from(coordinates[0]) + byte as i64);
            let is_there =
                (0..boxes.n_rows as i64).contains(&row) && (0..boxes.row_bytes as i64).contains(&column);
            let want = if is_there { contents[row as usize * boxes.row_bytes + column as usize] } else { 0 };
            let vector = match boxes.swizzled {
                true => vector_of(line, byte / 16, vectors),
                false => line * vectors + byte / 16,
            };
            assert_eq!(
                got[16 * vector + byte % 16],
                want,
                "byte {byte} of line {line} of {boxes:?} at {coordinates:?}"
            );
        }
    }
}

#[test]
fn emulated_boxes_of_the_copy_engine_have_the_rows_that_they_name() {
    let Some(driver) = Emulation::build_hopper() else { return };
    let (n_rows, row_bytes) = (256, 336);
    let random = &mut Random(2);
    let contents: Vec<u8> = (0..n_rows * row_bytes).map(|_| random.next() as u8).collect();
    let rows = Memory::new(&driver, &contents);
    let boxes = |box_rows, box_bytes, swizzled| Boxes {
        rows: rows.ptr,
        n_rows,
        row_bytes,
        box_rows,
        spread: false,
        box_bytes,
        swizzled,
    };
    for boxes in [boxes(64, 128, true), boxes(8, 128, true), boxes(64, 64, false), boxes(64, 16, false)] {
        // Within the matrix, and past its end in either dimension.
        for (column, row) in [(0, 0), (128, 3), (256, 100), (320, 250), (336, 0), (0, 256), (16, 1000)] {
            check_box(&driver, boxes, &contents, [column, row, -1, 0, 0], |line| {
                i64::from(row) + line as i64
            });
        }
    }
    // Of each 32 rows 8, from 0, 8, 16 or 24 on.
    for eighth in 0..4 {
        let boxes = Boxes { spread: true, ..boxes(64, 64, false) };
        let row = |line: usize| (line / 8 * 32 + eighth as usize * 8 + line % 8) as i64;
        check_box(&driver, boxes, &contents, [64, 0, eighth, 0, 0], row);
    }
}

#[repr(C)]
struct CheckRing {
    from: DevicePtr,
    to: DevicePtr,
    n: u32,
}

#[test]
fn an_emulated_ring_of_stages_loses_nothing() {
    let Some(driver) = Emulation::build_hopper() else { return };
    let n = 50;
    let random = &mut Random(3);
    let contents: Vec<u8> = (0..n * 512).map(|_| random.next() as u8).collect();
    let (from, to) = (Memory::new(&driver, &contents), Memory::new(&driver, &vec![0; contents.len()]));
    launch(&driver, "check_ring", [1; 3], 96, 1, &CheckRing { from: from.ptr, to: to.ptr, n: n as u32 });
    assert!(to.read() == contents);
}

#[repr(C)]
struct CheckCluster {
    sums: DevicePtr,
    flags: DevicePtr,
}

#[test]
fn emulated_blocks_of_a_cluster_read_each_others_memory_and_wait_for_later_blocks() {
    let Some(driver) = Emulation::build_hopper() else { return };
    // All four blocks run at once, which is as many as the device has multiprocessors.
    let (n_ranks, n_clusters) = (2, 2);
    let n = n_ranks * n_clusters;
    let (sums, flags) = (Memory::new(&driver, &vec![0; 4 * n]), Memory::new(&driver, &vec![0; 4 * n]));
    let args = CheckCluster { sums: sums.ptr, flags: flags.ptr };
    launch(&driver, "check_cluster", [n_ranks as u32, n_clusters as u32, 1], 64, n_ranks as u32, &args);
    for (block, got) in sums.read().chunks_exact(4).enumerate() {
        let cluster = block / n_ranks;
        let want: usize = (0..n_ranks).map(|rank| 4 * 10 * (cluster * n_ranks + rank) + 6).sum();
        assert_eq!(f32::from_le_bytes(got.try_into().unwrap()), want as f32, "block {block}");
    }
    assert_eq!(flags.read(), vec![0; 4 * n], "flags are taken back");
}
