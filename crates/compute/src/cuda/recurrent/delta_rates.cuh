// What the gated delta rule makes of a token's rates.
#pragma once
#include "softplus.cuh"

DEVICE float delta_beta(float b) { return 1.0f / (1.0f + expf(-b)); }

// The logarithm of the decay, at most 0. `decay`: that of the head, negative.
DEVICE float delta_log_decay(float a, float dt_bias, float decay) {
  return decay * softplus(a + dt_bias);
}
