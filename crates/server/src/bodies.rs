//! Bodies of requests: where they lie, how much memory all that are still arriving may take together, and what becomes of
//! those that nobody reads.
//!
//! A client that is refused early is often still sending. If the connection ended then, the system would drop the
//! answer that the client has not read yet, and the client would see a broken connection instead of the reason. So what
//! is left of a body is read and thrown away, within bounds, while the answer is on its way.

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use memmap2::MmapMut;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of a refused body that are read and thrown away.
const DRAINED_BYTES: usize = 256 << 20;
/// How long to wait for more of it. A client that has sent nothing for so long waits for the answer, and can read it.
const DRAIN_PAUSE: Duration = Duration::from_secs(1);
/// Bodies up to this size may use all of the budget, larger ones all but an eighth: so that small requests come through
/// while large ones fill it. Larger ones have pages of their own.
const SMALL_BYTES: usize = 64 << 10;

/// Memory for the bodies of all requests that are still arriving, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    used: AtomicUsize,
}

/// A body's part of the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// A budget of `total` bytes, or as much as one body of `max_body` bytes needs.
    pub(crate) fn new(total: usize, max_body: usize) -> Arc<Self> {
        let least = max_body.saturating_add(max_body / 7).saturating_add(SMALL_BYTES);
        Arc::new(Self { total: total.max(least), used: AtomicUsize::new(0) })
    }

    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }

    #[cfg(test)]
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Share {
    /// Takes `bytes` more; whether there were as many.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let total = self.budget.total;
        let limit = if self.bytes + bytes > SMALL_BYTES { total - total / 8 } else { total };
        let take = |used: usize| used.checked_add(bytes).filter(|&used| used <= limit);
        let taken = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The bytes of a body.
#[derive(Debug)]
pub(crate) enum Buffer {
    Small(Vec<u8>),
    /// Pages that go back to the system with the body. Of pieces of this size that several threads free, the allocator keeps more and more.
    Large {
        pages: MmapMut,
        n_bytes: usize,
    },
}

impl Default for Buffer {
    fn default() -> Self {
        Self::Small(Vec::new())
    }
}

impl Buffer {
    /// Appends what has arrived.
    ///
    /// Errors: the system has no memory.
    pub(crate) fn push(&mut self, data: &[u8]) -> io::Result<()> {
        let end = self.len() + data.len();
        let room = match self {
            Self::Small(_) => SMALL_BYTES,
            Self::Large { pages, .. } => pages.len(),
        };
        if end > room {
            // Pages that nothing was written to take no memory.
            let mut pages = MmapMut::map_anon(2 * end)?;
            pages[..self.len()].copy_from_slice(self);
            *self = Self::Large { pages, n_bytes: self.len() };
        }
        match self {
            Self::Small(bytes) => bytes.extend_from_slice(data),
            Self::Large { pages, n_bytes } => {
                pages[*n_bytes..end].copy_from_slice(data);
                *n_bytes = end;
            }
        }
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large { pages, n_bytes } => &pages[..*n_bytes],
        }
    }
}

/// Lets what nobody reads of a request's body arrive, for up to `timeout`.
pub(crate) async fn drain_unread(State(timeout): State<Duration>, request: Request, next: Next) -> Response {
    // This client waits to be told to send its body; unless it is, there is nothing to throw away.
    let waits = expects_continue(request.headers());
    next.run(request.map(|body| Body::new(Unread { body: Some(body), waits, timeout }))).await
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// A body whose rest is read and thrown away when it is dropped.
struct Unread {
    /// Some until it is dropped.
    body: Option<Body>,
    waits: bool,
    timeout: Duration,
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.waits = false;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let can_end = |body: &Body| body.size_hint().lower() <= DRAINED_BYTES as u64;
        let Some(body) = self.body.take().filter(|b| !self.waits && !b.is_end_stream() && can_end(b)) else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(self.timeout, drain(body)));
        }
    }
}

async fn drain(mut body: Body) {
    let mut n_bytes = 0;
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(DRAIN_PAUSE, body.frame()).await {
        n_bytes += frame.data_ref().map_or(0, Bytes::len);
        if n_bytes > DRAINED_BYTES {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let budget = Budget::new(1 << 20, 1000);
        let mut one = budget.share();
        assert!(one.grow(10) && one.grow(20));
        let mut two = budget.share();
        assert!(two.grow(5));
        assert_eq!(budget.used(), 35);
        drop(one);
        assert_eq!(budget.used(), 5);
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        let budget = Budget::new(8 << 20, 1000);
        let mut large = budget.share();
        assert!(large.grow(7 << 20));
        assert!(!large.grow(1), "an eighth is left");
        let mut more = budget.share();
        assert!(!more.grow(SMALL_BYTES + 1));
        let mut small = budget.share();
        assert!(small.grow(SMALL_BYTES));
        assert_eq!(budget.used(), (7 << 20) + SMALL_BYTES, "what was refused is not counted");
        drop(large);
        assert!(more.grow(SMALL_BYTES + 1));
    }

    #[test]
    fn a_body_is_what_arrived_whatever_its_size() {
        let (mut buffer, mut expected) = (Buffer::default(), Vec::new());
        for (i, n) in [0, 1, SMALL_BYTES - 1, 1, 0, 1, 100_000, 5_000_000, 3].into_iter().enumerate() {
            let data: Vec<u8> = (0..n).map(|at| (at * 7 + i) as u8).collect();
            buffer.push(&data).unwrap();
            expected.extend(data);
            assert_eq!(matches!(buffer, Buffer::Small(_)), expected.len() <= SMALL_BYTES);
            assert!(*buffer == expected, "after {} bytes", expected.len());
        }
    }

    #[test]
    fn one_body_always_fits() {
        let budget = Budget::new(0, 10_000_000);
        assert!(budget.share().grow(10_000_000));
    }
}
