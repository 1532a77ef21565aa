//! Which blocks of a launch compute which outputs, for kernels whose blocks own a range of one part's outputs.

/// The blocks of each part, by their bytes: one to an SM, and more until `fit`, which gets the most outputs that one has, finds
/// room for these; and what it makes of them.
pub(super) fn distribute<T>(
    n_sms: usize,
    spans: &[usize],
    bytes: &[usize],
    fit: impl Fn(usize) -> Option<T>,
) -> Option<(Vec<usize>, T)> {
    let mut wanted = n_sms;
    loop {
        let blocks = share(wanted, spans, bytes);
        let most = spans.iter().zip(&blocks).map(|(n_out, &n)| n_out.div_ceil(n)).max()?;
        if let Some(found) = fit(most) {
            return Some((blocks, found));
        }
        if wanted > 1 << 20 {
            return None;
        }
        wanted *= 2;
    }
}

/// Shares `wanted` blocks among parts by their bytes; each part of some outputs gets one at least, and one to an output at most.
fn share(wanted: usize, spans: &[usize], bytes: &[usize]) -> Vec<usize> {
    let total: usize = bytes.iter().sum();
    let mut blocks: Vec<usize> = spans
        .iter()
        .zip(bytes)
        .map(|(&n_out, &bytes)| (wanted * bytes / total.max(1)).clamp(1, n_out.max(1)))
        .collect();
    // What rounding left goes to the parts whose blocks have most to do.
    for _ in blocks.iter().sum()..wanted {
        let busiest =
            (0..spans.len()).filter(|&i| blocks[i] < spans[i]).max_by_key(|&i| bytes[i] / blocks[i]);
        let Some(i) = busiest else { break };
        blocks[i] += 1;
    }
    blocks
}
