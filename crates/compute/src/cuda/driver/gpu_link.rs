//! The connection of several GPUs of one machine: their memory where they reach each other's, NCCL for what is large.

use super::api::{DevicePtr, Driver, Link};
use super::gpu::Gpu;
use super::nccl::Nccl;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

struct GpuLink {
    nccl: Nccl,
    gpus: Vec<Arc<Gpu>>,
    devices: Vec<usize>,
    reaches: bool,
    /// In host memory that all GPUs read.
    cut: *mut AtomicU32,
}

// SAFETY: the word is an atomic that lives as long as this; the rest may be used from any thread.
unsafe impl Send for GpuLink {}
// SAFETY: the word is only used as an atomic; NCCL's communicators are behind a mutex each.
unsafe impl Sync for GpuLink {}

/// Devices and what connects them.
pub(super) type Group = (Vec<Arc<dyn Driver>>, Arc<dyn Link>);

/// Opens the GPUs of these numbers and connects them.
pub(super) fn open(devices: &[usize]) -> Result<Group> {
    let twice = (0..devices.len()).find(|&i| devices[..i].contains(&devices[i]));
    if let Some(i) = twice {
        return Err(failed(devices, format!("GPU {} is named twice", devices[i])));
    }
    let gpus = devices.iter().map(|&d| Gpu::open(d).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let Some(first) = gpus.first() else { return Err(failed(devices, "no GPU is named".into())) };
    let mut reaches = true;
    for a in &gpus {
        for b in gpus.iter().filter(|b| !Arc::ptr_eq(a, b)) {
            reaches &= a.reach(b)?;
        }
    }
    let nccl = Nccl::open(devices).map_err(|reason| failed(devices, reason))?;
    let cut = first.host_memory(size_of::<AtomicU32>())?.cast::<AtomicU32>();
    // SAFETY: the memory is new, large enough and aligned to a page.
    unsafe { cut.write(AtomicU32::new(0)) };
    tracing::info!(?devices, reaches, "GPUs connected");
    let drivers = gpus.iter().map(|gpu| gpu.clone() as Arc<dyn Driver>).collect();
    Ok((drivers, Arc::new(GpuLink { nccl, gpus, devices: devices.to_vec(), reaches, cut })))
}

fn failed(devices: &[usize], message: String) -> Error {
    let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
    Error::Device { device: format!("CUDA devices {}", names.join(", ")), message }
}

impl GpuLink {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the memory lives as long as this, and is only used as an atomic.
        unsafe { &*self.cut }
    }
}

impl Link for GpuLink {
    fn reaches(&self) -> bool {
        self.reaches
    }

    fn adds(&self) -> bool {
        true
    }

    unsafe fn all_reduce(&self, rank: usize, x: DevicePtr, n: usize) -> Result<()> {
        let gpu = &self.gpus[rank];
        gpu.bind()?;
        // SAFETY: `x` addresses `n` floats on this rank's device until the sum has run (`Link::all_reduce`), and the stream is that device's.
        let enqueued = unsafe { self.nccl.all_reduce(rank, x, n, gpu.stream()) };
        enqueued.map_err(|message| Error::Device { device: gpu.label(), message })
    }

    fn cut_word(&self) -> DevicePtr {
        // Page-locked memory has one address for the host and all GPUs.
        DevicePtr(self.cut as u64)
    }

    fn cut(&self) {
        if self.word().swap(1, Ordering::SeqCst) == 0 {
            tracing::error!(devices = ?self.devices, "GPUs disconnected");
            self.nccl.abort();
        }
    }

    fn is_cut(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for GpuLink {
    fn drop(&mut self) {
        for gpu in &self.gpus {
            // Kernels may still look at the word. A GPU that has failed is done with it.
            let _ = gpu.synchronize();
        }
        // SAFETY: no kernel runs any more, and this is the last user.
        unsafe { self.gpus[0].free_host(self.cut.cast()) };
    }
}
