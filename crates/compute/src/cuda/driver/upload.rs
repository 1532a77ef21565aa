//! Small copies from the host that do not stop the device.

use super::api::DevicePtr;
use super::buffer::Buffer;
use super::context::Cuda;
use super::kernels::{kernel_args, kernels};
use crate::Result;

kernel_args! {
    in "upload_args.cuh";

    /// Most words that fit the arguments of a kernel.
    const UPLOAD_WORDS: usize = 1000;

    struct UploadArgs {
        y: DevicePtr as "uint32_t*",
        n: u32,
        words: [u32; UPLOAD_WORDS],
    }
}

kernels! {
    /// Kernels of upload.cu.
    pub(in crate::cuda) struct Kernels in upload {
        upload: UploadArgs,
    }
}

/// Writes `words` at the start of `to`: as arguments of a kernel if they are few, since the device would wait for its copy engine.
pub(in crate::cuda) fn upload(cuda: &Cuda, to: &mut Buffer, words: &[u32]) -> Result<()> {
    assert!(4 * words.len() <= to.bytes(), "{} words in {} bytes", words.len(), to.bytes());
    if words.len() > UPLOAD_WORDS {
        return to.write(0, bytemuck::cast_slice(words));
    }
    let mut args = UploadArgs { y: to.ptr(), n: words.len() as u32, words: [0; UPLOAD_WORDS] };
    args.words[..words.len()].copy_from_slice(words);
    // SAFETY: the buffer has room, as was checked.
    unsafe { cuda.launch(cuda.room::<Kernels>().upload, [1, 1, 1], 256, &args) }
}
