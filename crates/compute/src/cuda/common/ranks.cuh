// How GPUs that share a model write to each other's memory.
//
// Every GPU has a mailbox with a place for each number of a tensor, from each GPU, for even and for odd rounds. An exchange is a round:
// GPUs send numbers to the others' mailboxes, each with the round's number beside it, and read what the others sent to their own. The 8
// bytes of both arrive at once, so where the number of the round is right the other is there, and nothing else is waited for. So it does
// not matter which kernel, or which of its blocks, sends or reads a number on either side.
//
// In a round each GPU sends to each other at least one number, and a kernel sends only when the one before is over. Who has got one of a
// round thus knows that the sender has read all of the round before, whose places the next one may write.
#pragma once
#include "kernel.cuh"
#include "ranks_args.cuh"

namespace ranks {

// Looks at a number before the word that ends all waiting is looked at once.
constexpr int LOOKS = 1 << 12;

// A GPU's place among the others.
struct Ranks : RanksArgs {
  DEVICE uint2* place(uint32_t to, uint32_t from, uint32_t round, uint32_t i) const {
    return mailboxes[to] + ((round & 1) * n_ranks + from) * static_cast<size_t>(PLACES) + i;
  }

  // This round's number. Not before the kernel before is over.
  DEVICE uint32_t round() const { return __ldcg(rounds + blockIdx.x) + 1; }

  // Ends the block's part of a round. All threads have its number.
  DEVICE void end(uint32_t round) const {
#pragma unroll 1
    for (int i = blockIdx.x + threadIdx.x * gridDim.x; i < MAX_BLOCKS; i += blockDim.x * gridDim.x) rounds[i] = round;
  }

  // Numbers i and i + 1, where i is even, or number i to every other GPU.
  DEVICE void send(uint32_t round, uint32_t i, float2 pair) const {
    for (uint32_t r = 0; r < n_ranks; r++) {
      if (r == rank) continue;
      ptx::store_packet(reinterpret_cast<uint4*>(place(r, rank, round, i)), __float_as_uint(pair.x), __float_as_uint(pair.y), round);
    }
  }
  DEVICE void send(uint32_t round, uint32_t i, float x) const {
    for (uint32_t r = 0; r < n_ranks; r++) {
      if (r != rank) ptx::store_packet(place(r, rank, round, i), __float_as_uint(x), round);
    }
  }

  // What GPU `from` sent, or anything after the waiting was ended.
  DEVICE float2 receive_pair(uint32_t round, uint32_t i, uint32_t from) const {
    const uint4* packet = reinterpret_cast<const uint4*>(place(rank, from, round, i));
    for (int looks = 1;; looks++) {
      const uint4 p = ptx::load_packet(packet);
      if ((p.y == round && p.w == round) || is_over(looks)) return {__uint_as_float(p.x), __uint_as_float(p.z)};
    }
  }
  DEVICE float receive(uint32_t round, uint32_t i, uint32_t from) const {
    const uint2* packet = place(rank, from, round, i);
    for (int looks = 1;; looks++) {
      const uint2 p = ptx::load_packet(packet);
      if (p.y == round || is_over(looks)) return __uint_as_float(p.x);
    }
  }

  // Sum of every GPU's number i, of which this one's is `mine`, in the order of GPUs, so that all get the same bits.
  DEVICE float sum(uint32_t round, uint32_t i, float mine) const {
    float sum = 0;
#pragma unroll 1
    for (uint32_t r = 0; r < n_ranks; r++) {
      const float x = r == rank ? mine : receive(round, i, r);
      sum = r == 0 ? x : sum + x;
    }
    return sum;
  }

 private:
  DEVICE bool is_over(int looks) const {
    ptx::pause();
    return looks % LOOKS == 0 && ptx::load_word(cut);
  }
};

}  // namespace ranks
