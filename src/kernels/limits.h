// What this processor can do at most, to measure kernels by.
#pragma once

#include <cstdint>

namespace tdock::kernels {

// Multiplies and adds in registers, on the calling thread, and gives the number of operations: a multiplication and an
// addition of float32 are two. A call takes some milliseconds. Thread-safe.
int64_t MultiplyAndAdd();

// The sum of the numbers, read from memory on the calling thread. Thread-safe.
float Sum(const float* x, int64_t size);

// The instructions that kernels use here: "avx512", "avx2", "baseline", …
const char* Instructions();

}  // namespace tdock::kernels
