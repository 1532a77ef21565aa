// The logarithm of 1 + e^x.
#pragma once
#include "../common/kernel.cuh"

// Above 20 the difference from x is below x's last bit.
DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
