//! What happens to a matmul's result.

use crate::Activation;
use crate::cuda::common::activation_code;

/// What happens to a matmul's result.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) enum Epilogue {
    /// It is written.
    Store,
    /// It is added to what is there.
    Add,
    /// Every rank's is added to what is there.
    AddRanks,
    /// The first half of the outputs goes through the function and is multiplied with the second.
    Gate(Activation),
    /// It goes through the function, of one number, and is written.
    Activate(Activation),
}

/// An [`Epilogue`] without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum EpilogueKind {
    Store,
    Add,
    AddRanks,
    Gate,
    Activate,
}

impl Epilogue {
    pub(in crate::cuda) fn kind(self) -> EpilogueKind {
        match self {
            Self::Store => EpilogueKind::Store,
            Self::Add => EpilogueKind::Add,
            Self::AddRanks => EpilogueKind::AddRanks,
            Self::Gate(_) => EpilogueKind::Gate,
            Self::Activate(_) => EpilogueKind::Activate,
        }
    }

    /// The number that kernels know it by.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Store => 0,
            Self::Add => 1,
            Self::Gate(_) => 2,
            Self::AddRanks => 3,
            Self::Activate(_) => 4,
        }
    }

    /// The number of the function; 0 without.
    pub(super) fn activation_code(self) -> u32 {
        match self {
            Self::Gate(f) | Self::Activate(f) => activation_code(f),
            _ => 0,
        }
    }
}
