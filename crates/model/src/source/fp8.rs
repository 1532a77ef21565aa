//! Weights in FP8 (E4M3) with scales beside them, as safetensors folders of DeepSeek V3, Qwen3-FP8 and others have them, read as BF16.
//!
//! A weight is its code times the scale of the block that it lies in. `X.weight` has its scales in `X.weight_scale_inv` or, from other
//! programs, in `X.weight_scale`: a number for each block (of 128 × 128, if `config.json` says nothing else), for each row, or for all. Scales
//! for rounding activations stand beside them and have no use here, since activations stay as they are.

use super::{Model, Other, TensorInfo, TensorSource, TensorView};
use crate::{Error, Result};
use realizar_compute::DType;
use std::collections::HashMap;
use std::sync::LazyLock;

/// What safetensors calls the type.
const ELEMENT: &str = "F8_E4M3";
/// Behind a weight's name, its scales.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// Behind the name of a weight's module, scales of activations and of cached keys and values.
const UNUSED: [&str; 5] = ["activation_scale", "input_scale", "output_scale", "k_scale", "v_scale"];
/// Where `config.json` states rows and columns of a block.
const BLOCK_KEYS: [&str; 2] = [
    "quantization_config.weight_block_size",
    "quantization_config.config_groups.group_0.weights.block_structure",
];

/// A weight of which the file has codes and scales.
pub(super) struct Fp8 {
    codes: Other,
    scales: TensorInfo,
    grid: Grid,
}

/// How many rows and columns of a matrix share a scale, and the scales of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    block: [usize; 2],
    n_columns: usize,
    /// Scales from one matrix to the next; 0 where all matrices share theirs.
    per_matrix: usize,
}

/// Makes weights of all tensors in FP8 that have scales, and hides these. Others stay what no weight can be.
///
/// Errors: `BadTensor` for scales of a shape that does not fit; `Malformed` for blocks of no size.
pub(super) fn attach(model: &mut Model) -> Result<()> {
    let is_fp8 = |(name, other): (&String, &Other)| (other.element == ELEMENT).then(|| name.clone());
    let mut names: Vec<String> = model.others.iter().filter_map(is_fp8).collect();
    if names.is_empty() {
        return Ok(());
    }
    names.sort();
    let block = block_size(model)?;
    let mut hidden = Vec::new();
    for name in names {
        let (scales, grid) = match find_scales(model, &name, block)? {
            Ok(found) => found,
            Err(why) => {
                model.others.entry(name).and_modify(|other| other.element = format!("{ELEMENT} {why}"));
                continue;
            }
        };
        let stem = name.strip_suffix("weight").map_or_else(|| format!("{name}_"), str::to_owned);
        hidden.push(scales.name.clone());
        hidden.extend(UNUSED.map(|end| format!("{stem}{end}")));
        let codes = model.others.remove(&name).expect("it was found there");
        model.scaled.insert(name, Fp8 { codes, scales, grid });
    }
    hide(model, &hidden)
}

/// Rows and columns of a block.
fn block_size(model: &Model) -> Result<[usize; 2]> {
    for key in BLOCK_KEYS {
        if let Some(stated) = model.metadata.get_i64s(key)? {
            let block: Option<Vec<usize>> = stated.iter().map(|&n| usize::try_from(n).ok()).collect();
            return match block.as_deref() {
                Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok([rows, columns]),
                _ => Err(Error::malformed(model.path(), format!("{key} is {stated:?}, not two sizes"))),
            };
        }
    }
    Ok([128, 128])
}

/// The scales of a tensor, or why it has none that can be read.
fn find_scales(
    model: &Model,
    name: &str,
    block: [usize; 2],
) -> Result<std::result::Result<(TensorInfo, Grid), String>> {
    let names = SCALES.map(|end| format!("{name}{end}"));
    let Some(scales) = names.iter().find_map(|scales| model.find(scales)) else {
        return Ok(Err(match names.iter().find_map(|scales| model.others.get(scales)) {
            Some(other) => format!("with scales of type {}", other.element),
            None => "without scales beside it".to_owned(),
        }));
    };
    let shape = &model.others[name].shape;
    let unfit = || format!("has shape {shape:?}, which scales of {:?} do not fit", scales.shape);
    let grid = Grid::new(shape, &scales.shape, block);
    let grid = grid.ok_or_else(|| Error::bad_tensor(model.path(), name, unfit()))?;
    Ok(Ok((scales.clone(), grid)))
}

impl Grid {
    /// Of weights `[.., n_rows, n_columns]`. `None` for scales that fit no way.
    fn new(weights: &[usize], scales: &[usize], block: [usize; 2]) -> Option<Self> {
        let (matrices, &[n_rows, n_columns]) = weights.split_last_chunk::<2>()?;
        if scales.iter().product::<usize>() == 1 {
            return Some(Self { block: [n_rows.max(1), n_columns.max(1)], n_columns: 1, per_matrix: 0 });
        }
        let counts = match scales.split_last_chunk::<2>() {
            Some((of, &counts)) if of == matrices => counts,
            _ if scales == matrices => [1, 1],
            _ if matrices.is_empty() && scales == [n_rows] => [n_rows, 1],
            _ => return None,
        };
        let size = |n: usize, count: usize, stated: usize| match count {
            1 => Some(n.max(1)),
            _ if n.div_ceil(stated) == count => Some(stated),
            _ => n.checked_div(count).filter(|size| size * count == n && n > 0),
        };
        let block = [size(n_rows, counts[0], block[0])?, size(n_columns, counts[1], block[1])?];
        Some(Self { block, n_columns: counts[1], per_matrix: counts[0] * counts[1] })
    }
}

/// Takes tensors out of the list and puts the weights into it, in the order of the files.
fn hide(model: &mut Model, hidden: &[String]) -> Result<()> {
    let hidden: std::collections::HashSet<&str> = hidden.iter().map(String::as_str).collect();
    let mut placed = Vec::new();
    for info in std::mem::take(&mut model.tensors) {
        if !hidden.contains(info.name.as_str()) {
            placed.push(((info.part, info.range.start), info));
        }
    }
    for (name, fp8) in &model.scaled {
        let info = TensorInfo::new(name.clone(), DType::BF16, fp8.codes.shape.clone());
        let bad = || Error::bad_tensor(&model.path, name, "has a shape that no weight can have");
        placed.push(((fp8.codes.part, fp8.codes.range.start), info.ok_or_else(bad)?));
    }
    placed.sort_by_key(|(place, _)| *place);
    model.tensors = placed.into_iter().map(|(_, info)| info).collect();
    let by_name = model.tensors.iter().enumerate().map(|(i, info)| (info.name.clone(), i));
    model.by_name = by_name.collect::<HashMap<_, _>>();
    Ok(())
}

impl Fp8 {
    /// The weights, each rounded to BF16 once.
    pub(super) fn read(&self, model: &Model) -> TensorView {
        let Self { codes, scales, grid } = self;
        let mut factors = vec![0.0; scales.n_elements()];
        (scales.dtype.spec().dequantize)(&model.parts[scales.part].1[scales.range.clone()], &mut factors);
        let shape = codes.shape.clone();
        let codes = &model.parts[codes.part].1[codes.range.clone()];
        let &[n_rows, n_columns] = shape.last_chunk().expect("the grid fits the shape");
        let round = DType::BF16.spec().quantize.expect("any number can be rounded to BF16");
        let (mut row, mut bytes) = (vec![0.0; n_columns], vec![0; 2 * codes.len()]);
        let rows = codes.chunks_exact(n_columns.max(1)).zip(bytes.chunks_exact_mut(2 * n_columns.max(1)));
        for (i, (codes, out)) in rows.enumerate() {
            let (matrix, at) = (i / n_rows, i % n_rows / grid.block[0]);
            let factors = &factors[matrix * grid.per_matrix + at * grid.n_columns..][..grid.n_columns];
            let blocks = codes.chunks(grid.block[1]).zip(row.chunks_mut(grid.block[1])).zip(factors);
            for ((codes, row), factor) in blocks {
                codes.iter().zip(row).for_each(|(&code, x)| *x = NUMBERS[usize::from(code)] * factor);
            }
            round(&row, out, None);
        }
        TensorView { dtype: DType::BF16, shape, bytes: bytes.into() }
    }
}

/// The number of each code: a sign, four bits of exponent with a bias of 7, three of mantissa; no infinities, and one NaN of each sign.
static NUMBERS: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|code| {
        let (exponent, mantissa) = ((code >> 3 & 15) as i32, (code & 7) as f32);
        let size = match (exponent, code & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa * 2f32.powi(-9),
            _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
        };
        if code < 128 { size } else { -size }
    })
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{StoredTensor, open_counting};

    const NAME: &str = "model.layers.0.mlp.up_proj.weight";

    fn open(config: &[u8], tensors: &[StoredTensor<'_>]) -> Result<Box<dyn TensorSource>> {
        open_counting(config, tensors)
    }

    #[test]
    fn codes_are_those_of_e4m3() {
        // 1.0, the least normal and subnormal numbers, the largest, and NaN.
        for (code, number) in
            [(0x38, 1.0), (0x08, 0.015625), (0x01, 0.001953125), (0x7e, 448.0), (0xc0, -2.0)]
        {
            assert_eq!(NUMBERS[code], number, "{code:#x}");
        }
        assert!(NUMBERS[0x7f].is_nan() && NUMBERS[0xff].is_nan() && NUMBERS[0x80] == 0.0);
    }

    #[test]
    fn grids_fit_blocks_rows_and_whole_tensors() {
        let grid = |weights: &[usize], scales: &[usize]| Grid::new(weights, scales, [128, 128]);
        let of = |block, n_columns, per_matrix| Some(Grid { block, n_columns, per_matrix });
        assert_eq!(grid(&[300, 256], &[3, 2]), of([128, 128], 2, 6));
        assert_eq!(grid(&[4, 256, 128], &[4, 2, 1]), of([128, 128], 1, 2));
        assert_eq!(grid(&[300, 256], &[300, 1]), of([1, 256], 1, 300));
        assert_eq!(grid(&[300, 256], &[300]), of([1, 256], 1, 300));
        assert_eq!(grid(&[300, 256], &[]), of([300, 256], 1, 0));
        assert_eq!(grid(&[300, 256], &[1]), of([300, 256], 1, 0));
        assert_eq!(grid(&[4, 300, 256], &[4]), of([300, 256], 1, 1));
        // Other blocks that divide the matrix evenly.
        assert_eq!(grid(&[64, 64], &[2, 4]), of([32, 16], 4, 8));
        for scales in [&[7, 2][..], &[3, 5], &[256], &[3, 2, 1]] {
            assert_eq!(grid(&[300, 256], scales), None, "{scales:?}");
        }
        assert_eq!(grid(&[256], &[2]), None);
    }

    #[test]
    fn weights_are_read_and_scales_are_hidden() {
        let scales = format!("{NAME}_scale");
        let input = NAME.replace("weight", "input_scale");
        // Bytes count from 0 in each tensor: row r has the codes from 4r on, and a scale of the bytes 2r and 2r + 1.
        let tensors =
            [(NAME, "F8_E4M3", 1, &[32, 4][..]), (&scales, "BF16", 2, &[32, 1]), (&input, "BF16", 2, &[1])];
        let source = open(b"{}", &tensors).unwrap();
        assert_eq!(source.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), [NAME]);
        let view = source.tensor(NAME).unwrap();
        let mut numbers = [0.0; 128];
        (view.dtype.spec().dequantize)(&view.bytes, &mut numbers);
        // Scales of the first rows are next to nothing, and the last code is no number.
        for (i, &number) in numbers.iter().enumerate().take(124).skip(96) {
            let row = i as u32 / 4;
            let exact = NUMBERS[i] * f32::from_bits((2 * row + 1) << 24 | (2 * row) << 16);
            assert!(exact > 0.0 && (number - exact).abs() <= exact / 256.0, "{i}: {number}, not {exact}");
        }
    }

    #[test]
    fn weights_without_fitting_scales_are_refused() {
        let scales = format!("{NAME}_scale_inv");
        let weights = (NAME, "F8_E4M3", 1, &[2, 4][..]);
        let cases: [(&[u8], &[StoredTensor<'_>], &str); 2] = [
            (b"{}", &[weights, (&scales, "F32", 4, &[3, 1])], "do not fit"),
            (
                br#"{"quantization_config": {"weight_block_size": [0, 128]}}"#,
                &[weights, (&scales, "F32", 4, &[1, 1])],
                "weight_block_size",
            ),
        ];
        for (config, tensors, reason) in cases {
            let error = open(config, tensors).err().expect(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
        // A model may not need them.
        for (tensors, reason) in [
            (&[weights][..], "F8_E4M3 without scales"),
            (&[weights, (&scales, "F8_E8M0", 1, &[1, 1])], "scales of type F8_E8M0"),
        ] {
            let error = open(b"{}", tensors).unwrap().tensor(NAME).unwrap_err();
            assert!(
                matches!(error, Error::UnsupportedType { .. }) && error.to_string().contains(reason),
                "{error}"
            );
        }
    }
}
