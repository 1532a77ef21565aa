//! What an encoder makes of a text.

use super::Presence;
use realizar_compute::{Activation, Pooling};

/// What becomes of the last hidden states of a text's tokens in a model that makes no logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    /// Which row of those of all tokens goes on.
    pub pooling: Pooling,
    /// Matrices that follow, from the first to the last.
    pub head: Vec<HeadLayer>,
    /// What the result is.
    pub output: EncoderOutput,
}

impl Encoder {
    /// Numbers for each text, of a model of this width.
    pub fn output_len(&self, hidden_size: usize) -> usize {
        self.head.last().map_or(hidden_size, |layer| layer.n_out)
    }
}

/// What an encoder's result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderOutput {
    /// A vector that is compared with those of other texts; divided by its length where `normalize` says so.
    Embedding {
        /// Whether the files say that vectors are divided by their length.
        normalize: bool,
    },
    /// One score of how well a query and a document go together, before the sigmoid.
    Score,
    /// The logits of "yes" and "no" as the answer to whether they do.
    YesNo,
}

/// A matrix after pooling, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayer {
    /// Its name in [`NAMES`](crate::names::NAMES).
    pub name: &'static str,
    /// Of a matrix with a row for each token, the rows that count, by their tokens.
    pub tokens: Option<[u32; 2]>,
    /// Outputs.
    pub n_out: usize,
    /// Its bias.
    pub bias: Presence,
    /// The function of each output.
    pub function: HeadFunction,
    /// The norm of the outputs behind that, by its name in [`NAMES`](crate::names::NAMES).
    pub norm: Option<&'static str>,
}

/// A function behind a matrix after pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFunction {
    /// None.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// One that feed-forward blocks have, too.
    Activation(Activation),
}
