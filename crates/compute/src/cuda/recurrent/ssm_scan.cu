// The state-space scan of Mamba-2 (Dao and Gu 2024) of a step's tokens, one after the other, with the state in registers.
//
//   for each token:  S = decay · S + B ⊗ (Δ · x);  y = CᵀS + D · x
//
// Mapping. Block: WARPS warps, 4 WARPS columns of the state of one head of one sequence, over all of its tokens. Warp and lane hold them as
// `columns.cuh` says. Columns do not depend on each other; sums over rows go over 16 lanes. While 8 tokens are computed, the next 8 tokens'
// inputs come into the other stage. Shared memory: two stages, 17 KiB for states of 128 rows, static.
// Moves: the columns of the slots read and written, 4 bytes a row each; the tokens' x, B and C.
#include "columns.cuh"
#include "ssm.cuh"

constexpr int TOKENS = 8;  // of a stage

// A stage of tokens in shared memory.
template <int ROWS>
struct Stage {
  __align__(16) float b[TOKENS][ROWS], c[TOKENS][ROWS];
  float x[TOKENS][SSM_COLUMNS];
  float dt[TOKENS], decay[TOKENS];
};

DEVICE HeadSlots slots_of(const SsmScanArgs& a, const SsmWork& work) { return {a.state, a.n_heads, a.head_dim, a.state_dim, work.head}; }

// Puts `count` tokens from `first` of the sequence on into a stage.
template <int ROWS>
DEVICE void load_stage(Stage<ROWS>& stage, const SsmScanArgs& a, const SsmWork& work, int first, int count, int tid) {
  const int n_rows = a.state_dim, head_dim = a.head_dim, inner_len = a.n_heads * head_dim;
  const float* xbc = a.xbc + static_cast<size_t>(work.first_token + first) * a.xbc_len;
  for (int i = tid; i < count * ROWS; i += SSM_THREADS) {
    const int token = i / ROWS, row = i % ROWS;
    const float* b = xbc + static_cast<size_t>(token) * a.xbc_len + inner_len + work.group * n_rows;
    stage.b[token][row] = row < n_rows ? b[row] : 0.0f;
    stage.c[token][row] = row < n_rows ? b[a.n_groups * n_rows + row] : 0.0f;
  }
  for (int i = tid; i < count * SSM_COLUMNS; i += SSM_THREADS) {
    const int token = i / SSM_COLUMNS, column = work.first_column + i % SSM_COLUMNS;
    const float* x = xbc + static_cast<size_t>(token) * a.xbc_len + work.head * head_dim;
    stage.x[token][i % SSM_COLUMNS] = column < head_dim ? x[column] : 0.0f;
  }
  if (tid < count) {
    const float dt = work.step_size(a, first + tid);
    stage.dt[tid] = dt, stage.decay[tid] = expf(a.decay[work.head] * dt);
  }
}

// The state of a lane, with the scan.
template <int ROWS>
struct ScanState : ColumnState<ROWS> {
  using ColumnState<ROWS>::ColumnState, ColumnState<ROWS>::PIECES, ColumnState<ROWS>::s, ColumnState<ROWS>::row_of;

  // A token's step. Returns the result of the lane's first or, where its bit 3 is set, second column. `x`: of the lane's columns.
  DEVICE float step(const float* b, const float* c, const float* x, float dt, float decay, int lane) {
    const float input[2] = {dt * x[0], dt * x[1]};
    float out[2] = {};
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      const float4 in = *reinterpret_cast<const float4*>(b + row_of(i, lane)), read = *reinterpret_cast<const float4*>(c + row_of(i, lane));
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float4& part = s[j][i];
        part.x = fmaf(in.x, input[j], decay * part.x), part.y = fmaf(in.y, input[j], decay * part.y);
        part.z = fmaf(in.z, input[j], decay * part.z), part.w = fmaf(in.w, input[j], decay * part.w);
        out[j] = fmaf(read.x, part.x, out[j]), out[j] = fmaf(read.y, part.y, out[j]);
        out[j] = fmaf(read.z, part.z, out[j]), out[j] = fmaf(read.w, part.w, out[j]);
      }
    }
    return sum_of_one(out, lane);
  }
};

template <int ROWS>
DEVICE void ssm_scan(const SsmScanArgs& a) {
  ptx::launch_dependents();
  __shared__ Stage<ROWS> stages[2];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, head_dim = a.head_dim;
  const SsmWork work(a, SSM_COLUMNS);
  SeqState slots(a.batch, a.states, work.seq);
  ScanState<ROWS> state(work.first_column + warp * 4, lane);
  // Slots were written steps ago.
  state.load(slots_of(a, work), slots.from, lane);
  const float skip = a.skip[work.head];
  ptx::griddepcontrol_wait();
  load_stage(stages[0], a, work, 0, min(work.n_tokens, TOKENS), tid);
  const int mine = warp * 4 + lane / 16 * 2 + (lane / 8 & 1), column = work.first_column + mine;
  for (int first = 0; first < work.n_tokens; first += TOKENS) {
    const int count = min(work.n_tokens - first, TOKENS), next = first + TOKENS;
    const Stage<ROWS>& stage = stages[first / TOKENS % 2];
    // All warps have also read the stage before, which the next one replaces.
    __syncthreads();
    if (next < work.n_tokens) load_stage(stages[next / TOKENS % 2], a, work, next, min(work.n_tokens - next, TOKENS), tid);
    for (int t = 0; t < count; t++) {
      const float y = state.step(stage.b[t], stage.c[t], stage.x[t] + warp * 4 + lane / 16 * 2, stage.dt[t], stage.decay[t], lane);
      if (lane % 8 == 0 && column < head_dim) {
        a.y[(static_cast<size_t>(work.first_token + first + t) * a.n_heads + work.head) * head_dim + column] =
            fmaf(skip, stage.x[t][mine], y);
      }
      for (; slots.after == static_cast<uint32_t>(first + t + 1); slots.advance()) state.store(slots_of(a, work), slots.slot, lane);
    }
  }
}

KERNEL(ssm_scan_64, SsmScanArgs, SSM_THREADS) { ssm_scan<64>(a); }
KERNEL(ssm_scan_128, SsmScanArgs, SSM_THREADS) { ssm_scan<128>(a); }
KERNEL(ssm_scan_256, SsmScanArgs, SSM_THREADS) { ssm_scan<256>(a); }
