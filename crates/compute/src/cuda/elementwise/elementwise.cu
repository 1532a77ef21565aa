// Operations on each element by itself. A thread owns one element, of `add` and `scale` four; moves each operand once.
#include "../common/activation.cuh"
#include "elementwise_args.cuh"

DEVICE size_t element() { return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Row and column of an element, and the row of x that it reads.
DEVICE size_t gathered(const ElementwiseArgs& a, size_t i) {
  uint32_t row = a.rows[i / a.row_len];
  if (row >= a.n_x_rows) row = a.n_x_rows - 1;
  return static_cast<size_t>(row) * a.row_len + i % a.row_len;
}

// Makes f(y, x) of a thread's four elements; x is 0 where there is none.
template <class F>
DEVICE void for_four(const ElementwiseArgs& a, F f) {
  const size_t i = 4 * element();
  const bool is_aligned = (reinterpret_cast<uintptr_t>(a.y) | reinterpret_cast<uintptr_t>(a.x)) % 16 == 0;
  if (is_aligned && i + 4 <= a.len) {
    const float4 y = *reinterpret_cast<const float4*>(a.y + i);
    const float4 x = a.x ? *reinterpret_cast<const float4*>(a.x + i) : float4{0, 0, 0, 0};
    *reinterpret_cast<float4*>(a.y + i) = float4{f(y.x, x.x), f(y.y, x.y), f(y.z, x.z), f(y.w, x.w)};
    return;
  }
  for (size_t j = i; j < i + 4 && j < a.len; j++) a.y[j] = f(a.y[j], a.x ? a.x[j] : 0.0f);
}

KERNEL(add, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  for_four(a, [](float y, float x) { return y + x; });
}

KERNEL(add_rows, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] += a.x[gathered(a, i)];
}

KERNEL(select_rows, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] = a.x[gathered(a, i)];
}

KERNEL(select_previous, SelectPreviousArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i >= a.len) return;
  const uint32_t row = a.rows[i / a.row_len], column = i % a.row_len;
  // Bit 31 marks rows of the same step.
  constexpr uint32_t HERE = 1u << 31;
  float x = 0.0f;
  if (row < HERE) x = a.before[static_cast<size_t>(row < a.n_before ? row : a.n_before - 1) * a.row_len + column];
  else if (row != ~0u) x = a.here[static_cast<size_t>(row - HERE) * a.row_len + column];
  a.y[i] = x;
}

KERNEL(gated, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i >= a.len) return;
  const float* x = a.x + i / a.row_len * 2 * a.row_len + i % a.row_len;
  a.y[i] = gate_one(a.activation, x[0], x[a.row_len]);
}

KERNEL(activate, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] = activate_one(a.activation, a.y[i]);
}

KERNEL(softcap, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] = a.factor * tanhf(a.y[i] / a.factor);
}

KERNEL(scale, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const float factor = a.factor;
  for_four(a, [=](float y, float) { return y * factor; });
}

KERNEL(gate_rows, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] /= 1.0f + expf(-a.x[i / a.row_len]);
}

KERNEL(sigmoid_gate, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] /= 1.0f + expf(-a.x[i]);
}

KERNEL(scale_columns, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] *= a.x[i % a.row_len];
}

KERNEL(add_columns, ElementwiseArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] += a.x[i % a.row_len];
}

KERNEL(gate_columns, GateColumnsArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i < a.len) a.y[i] = gate_one(a.activation, a.y[i], a.x[i / a.row_len * a.x_row_len + i % a.row_len]);
}

KERNEL(scale_by_position, PositionScaleArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const size_t i = element();
  if (i >= a.len) return;
  const uint32_t periods = a.positions[i / a.n] / a.period;
  // The factor is 1, so that most contexts need no write.
  if (periods == 0) return;
  a.x[i / a.n * a.row_len + i % a.n] *= 1.0f + a.beta * logf(1.0f + static_cast<float>(periods));
}

// One row of those of each sequence's tokens. Block: 32 columns of a sequence; 8 lines share its tokens, and are added in order at the end.
KERNEL(pool, PoolArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float sums[8][32];
  const uint32_t line = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
  const uint32_t start = a.seq_starts[blockIdx.y], end = a.seq_starts[blockIdx.y + 1];
  const uint32_t first = a.pooling == 2 ? end - 1 : start, last = a.pooling == 1 ? start + 1 : end;
  float sum = 0;
  if (column < a.row_len) {
    for (uint32_t t = first + line; t < last; t += 8) sum += a.x[static_cast<size_t>(t) * a.row_len + column];
  }
  sums[line][lane] = sum;
  __syncthreads();
  if (line > 0 || column >= a.row_len) return;
  for (int l = 1; l < 8; l++) sum += sums[l][lane];
  a.y[static_cast<size_t>(blockIdx.y) * a.row_len + column] = sum / static_cast<float>(last - first);
}
