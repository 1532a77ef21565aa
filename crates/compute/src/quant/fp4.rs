//! FP4 (E2M1): a sign, two bits of exponent and one of mantissa; the elements of MXFP4 and NVFP4.

/// Twice the value of each FP4 code, so that all are integers.
///
/// The scales that go with this table are half of what the format says. Source: OCP Microscaling Formats 1.0, 5.3.3.
pub(crate) static DOUBLED_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
