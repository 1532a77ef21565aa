//! Memory of tensors and weights on the device, and scratch memory that operations share.

use super::api::{DevicePtr, Driver};
use super::lock::lock;
use crate::{DType, Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// Device memory, freed when dropped.
pub struct Buffer {
    driver: Arc<dyn Driver>,
    ptr: DevicePtr,
    bytes: usize,
}

impl Buffer {
    /// Memory with unspecified contents.
    pub(in crate::cuda) fn new(driver: &Arc<dyn Driver>, bytes: usize, what: &str) -> Result<Self> {
        let ptr = driver.allocate(bytes, what)?;
        Ok(Self { driver: driver.clone(), ptr, bytes })
    }

    /// Zeros.
    pub(in crate::cuda) fn zeros(driver: &Arc<dyn Driver>, dtype: DType, shape: &[usize]) -> Result<Self> {
        let row = shape.last().copied().unwrap_or(1);
        let row_bytes = dtype.bytes_for(row).ok_or_else(|| Error::PartialBlock {
            what: "a tensor".into(),
            dtype,
            len: row,
            block_len: dtype.block_len(),
        })?;
        let what = format!("{dtype} {shape:?}");
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
        let bytes = rows.and_then(|r| r.checked_mul(row_bytes)).ok_or_else(|| Error::OutOfMemory {
            device: "CUDA".into(),
            what: what.clone(),
            requested: usize::MAX,
        })?;
        let buffer = Self::new(driver, bytes, &what)?;
        // SAFETY: the buffer has this many bytes.
        unsafe { driver.zero(buffer.ptr, bytes)? };
        Ok(buffer)
    }

    /// Copies `src` to the place `at` bytes from the start.
    pub(in crate::cuda) fn write(&mut self, at: usize, src: &[u8]) -> Result<()> {
        assert!(at + src.len() <= self.bytes, "{} bytes at {at} of {}", src.len(), self.bytes);
        // SAFETY: checked above.
        unsafe { self.driver.write(self.ptr.offset(at), src) }
    }

    /// Where it begins.
    pub(in crate::cuda) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Size.
    pub(in crate::cuda) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory is this buffer's own; the driver waits for work that uses it.
        unsafe { self.driver.free(self.ptr) }
    }
}

/// Memory that one operation writes and reads and no other sees; each purpose has its own.
///
/// What a thread enqueues, the device does in that order, so operations of one thread can share it. Threads have their own, since
/// between two kernels of an operation may come those of another thread's.
///
/// It grows while shapes are new and then stays. What it outgrew is kept, since recorded graphs may still use it.
#[derive(Default)]
pub(in crate::cuda) struct Scratch {
    by_purpose: Mutex<HashMap<(ThreadId, &'static str), Vec<Buffer>>>,
}

impl Scratch {
    pub(in crate::cuda) fn get(
        &self,
        driver: &Arc<dyn Driver>,
        purpose: &'static str,
        bytes: usize,
    ) -> Result<DevicePtr> {
        self.find(driver, purpose, bytes, false)
    }

    /// As `get`; zeros when it is made.
    pub(in crate::cuda) fn zeros(
        &self,
        driver: &Arc<dyn Driver>,
        purpose: &'static str,
        bytes: usize,
    ) -> Result<DevicePtr> {
        self.find(driver, purpose, bytes, true)
    }

    fn find(
        &self,
        driver: &Arc<dyn Driver>,
        purpose: &'static str,
        bytes: usize,
        zeros: bool,
    ) -> Result<DevicePtr> {
        let mut by_purpose = lock(&self.by_purpose);
        let buffers = by_purpose.entry((thread::current().id(), purpose)).or_default();
        if buffers.last().is_none_or(|b| b.bytes() < bytes) {
            let buffer = Buffer::new(driver, bytes.next_power_of_two(), purpose)?;
            if zeros {
                // SAFETY: the buffer has this many bytes.
                unsafe { driver.zero(buffer.ptr, buffer.bytes)? };
            }
            buffers.push(buffer);
        }
        Ok(buffers.last().expect("one was just made").ptr())
    }
}
