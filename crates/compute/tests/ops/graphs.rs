//! Random graphs of operations: what one leaves is what others read, in place and through scratch memory that all share.

use super::matrices::part;
use super::*;
use realizar_compute::{Activation, Norm, NormKind};

/// Row lengths of the registers, two of each. Packed types have whole blocks in all of them.
const LENGTHS: [usize; 3] = [256, 512, 768];
const N_REGISTERS: usize = 2 * LENGTHS.len();

/// An operation on registers, which are named by their numbers.
#[derive(Debug, Clone, Copy)]
enum Node {
    /// `to = w · from`, with the seed of the weights.
    Matmul {
        to: usize,
        from: usize,
        dtype: DType,
        bias: bool,
        seed: u64,
    },
    /// `to = norm(from)`.
    Norm {
        to: usize,
        from: usize,
        kind: NormKind,
        seed: u64,
    },
    NormInPlace {
        x: usize,
        kind: NormKind,
        seed: u64,
    },
    /// `to += from`.
    Add {
        to: usize,
        from: usize,
    },
    /// `to = f(first half of from) · second half`.
    Gated {
        to: usize,
        from: usize,
        activation: Activation,
    },
    Activate {
        x: usize,
        activation: Activation,
    },
    SigmoidGate {
        x: usize,
        gate: usize,
    },
    ScaleColumns {
        x: usize,
        seed: u64,
    },
    AddColumns {
        x: usize,
        seed: u64,
    },
    Softcap {
        x: usize,
        cap: f32,
    },
    Scale {
        x: usize,
        factor: f32,
    },
}

/// A graph of `nodes`, in their order, on `rows` rows of random numbers.
#[derive(Debug)]
struct Graph {
    rows: usize,
    nodes: Vec<Node>,
    /// Of the inputs.
    seed: u64,
}

fn length(register: usize) -> usize {
    LENGTHS[register / 2]
}

impl Graph {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        // Few rows, those of batches, and those of prompts take different kernels.
        let rows = [1, 2, 5, 8, 17, 40, 70, 130][random.below(8)];
        let n_nodes = 4 + random.below(9);
        Self { rows, nodes: (0..n_nodes).map(|_| Node::random(&mut random)).collect(), seed }
    }
}

impl Node {
    fn random(random: &mut Random) -> Self {
        let dtypes =
            [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::Q4_0];
        let kind = if random.below(3) == 0 { NormKind::Layer } else { NormKind::Rms };
        let activation = [Activation::Silu, Activation::GeluTanh, Activation::GeluErf][random.below(3)];
        let seed = 1 + random.below(3) as u64;
        let x = random.below(N_REGISTERS);
        let other = (x + 1 + random.below(N_REGISTERS - 1)) % N_REGISTERS;
        // The other register of the same length.
        let twin = x ^ 1;
        match random.below(14) {
            0..=3 => {
                let dtype = dtypes[random.below(dtypes.len())];
                Self::Matmul { to: x, from: other, dtype, bias: random.below(2) == 0, seed }
            }
            4 | 5 => Self::Norm { to: x, from: twin, kind, seed },
            6 => Self::NormInPlace { x, kind, seed },
            7 => Self::Add { to: x, from: twin },
            8 => Self::Gated { to: random.below(2), from: 2 + random.below(2), activation },
            9 => Self::Activate { x, activation },
            10 => Self::SigmoidGate { x, gate: twin },
            11 => Self::ScaleColumns { x, seed },
            12 => Self::AddColumns { x, seed },
            _ if random.below(2) == 0 => Self::Softcap { x, cap: 20.0 },
            _ => Self::Scale { x, factor: 0.5 },
        }
    }

    /// The register that it writes, those whose numbers it reads, the largest error of the operation itself, and how much larger it may make
    /// those of what it reads.
    fn effect(self, sums: Sums) -> (usize, Vec<usize>, f64, f64) {
        match self {
            // Numbers that went through gates have outliers, beside which the others are rounded more.
            Self::Matmul { to, from, dtype, .. } => (to, vec![from], 8.0 * tolerance(dtype, sums), 2.0),
            Self::Norm { to, from, .. } => (to, vec![from], ELEMENTWISE, 4.0),
            Self::NormInPlace { x, .. } => (x, vec![x], ELEMENTWISE, 4.0),
            Self::Add { to, from } => (to, vec![to, from], ELEMENTWISE, 2.0),
            Self::Gated { to, from, .. } => (to, vec![from], ELEMENTWISE, 16.0),
            Self::Activate { x, .. } => (x, vec![x], ELEMENTWISE, 8.0),
            Self::SigmoidGate { x, gate } => (x, vec![x, gate], ELEMENTWISE, 16.0),
            Self::ScaleColumns { x, .. } | Self::AddColumns { x, .. } => (x, vec![x], ELEMENTWISE, 2.0),
            Self::Softcap { x, .. } | Self::Scale { x, .. } => (x, vec![x], ELEMENTWISE, 2.0),
        }
    }
}

impl Case for Graph {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let mut random = Random(self.seed ^ 0x5eed);
        let mut registers: Vec<Option<Tensor<B>>> = (0..N_REGISTERS)
            .map(|r| Some(rows_of(b, &random.normals(self.rows * length(r)), length(r))))
            .collect();
        let norm = |kind, register, seed| Norm {
            kind,
            weight: vector(b, &Random(seed).normals(length(register))),
            bias: None,
            eps: 1e-5,
        };
        for &node in &self.nodes {
            let (to, ..) = node.effect(Sums::Exact);
            let mut y = registers[to].take().expect("in place");
            let of = |register: usize| registers[register].as_ref().expect("another one");
            match node {
                Node::Matmul { from, dtype, bias, seed, .. } => {
                    let (n_out, n_in) = (length(to), length(from));
                    let w = b.matrix(vec![part(dtype, 1, n_out, n_in, seed)]).unwrap();
                    let bias = bias.then(|| vector(b, &Random(seed).normals(n_out)));
                    b.matmul(&mut y, of(from), &w, bias.as_ref()).unwrap();
                    // Back to about unit size.
                    b.scale(&mut y, (n_in as f32).sqrt().recip()).unwrap();
                }
                Node::Norm { from, kind, seed, .. } => {
                    b.norm(&mut y, of(from), &norm(kind, to, seed)).unwrap()
                }
                Node::NormInPlace { kind, seed, .. } => {
                    b.norm_in_place(&mut y, &norm(kind, to, seed)).unwrap()
                }
                Node::Add { from, .. } => b.add(&mut y, of(from)).unwrap(),
                Node::Gated { from, activation, .. } => b.gated(&mut y, of(from), activation).unwrap(),
                Node::Activate { activation, .. } => b.activate(&mut y, activation).unwrap(),
                Node::SigmoidGate { gate, .. } => b.sigmoid_gate(&mut y, of(gate)).unwrap(),
                Node::ScaleColumns { seed, .. } => {
                    b.scale_columns(&mut y, &vector(b, &Random(seed).normals(length(to)))).unwrap();
                }
                Node::AddColumns { seed, .. } => {
                    b.add_columns(&mut y, &vector(b, &Random(seed).normals(length(to)))).unwrap();
                }
                Node::Softcap { cap, .. } => b.softcap(&mut y, cap).unwrap(),
                Node::Scale { factor, .. } => b.scale(&mut y, factor).unwrap(),
            }
            registers[to] = Some(y);
        }
        let names = ["a", "b", "c", "d", "e", "f"];
        names.into_iter().zip(registers.iter_mut().flatten()).map(|(name, x)| (name, read(b, x))).collect()
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        let mut errors = [0.0f64; N_REGISTERS];
        for node in &self.nodes {
            let (to, from, own, growth) = node.effect(sums);
            let largest = from.into_iter().map(|r| errors[r]).fold(0.0, f64::max);
            errors[to] = own + growth * largest;
        }
        // More would not tell wrong numbers from rounded ones.
        errors.into_iter().fold(0.0, f64::max).min(0.05)
    }
}

#[test]
fn random_graphs() {
    let graphs: Vec<Graph> = (0..60).map(Graph::random).collect();
    check_grid(4, &graphs);
}
