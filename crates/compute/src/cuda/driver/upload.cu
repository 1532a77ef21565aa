// A few words from the host to the device, as arguments of a kernel.
#include "../common/kernel.cuh"
#include "upload_args.cuh"

// Kernels of the step read what it writes before they wait for the kernel before them, so none may start while it runs.
KERNEL(upload, UploadArgs, 256) {
  ptx::griddepcontrol_wait();
  for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x) a.y[i] = a.words[i];
}
