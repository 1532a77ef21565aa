// What the gated delta rule makes of a token's rates.
#pragma once
#include "../common/kernel.cuh"

DEVICE float delta_beta(float b) { return 1.0f / (1.0f + expf(-b)); }

// The logarithm of the decay, at most 0. `decay`: that of the head, negative.
DEVICE float delta_log_decay(float a, float dt_bias, float decay) {
  const float x = a + dt_bias;
  // Above 20 the difference of ln(1 + e^x) from x is below x's last bit.
  return decay * (x > 20.0f ? x : log1pf(expf(x)));
}
