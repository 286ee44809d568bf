// What this processor can do at most, to measure kernels by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock::kernels {

// Multiplies and adds in registers, on the calling thread, and gives the number of operations: a multiplication and an
// addition of float32 are two. A call takes some milliseconds. Thread-safe.
int64_t MultiplyAndAdd();

// The sum of the numbers, read from memory on the calling thread. Thread-safe.
float Sum(const float* x, int64_t size);

// The instructions that kernels use: "avx512_bf16", "avx512", "avx2" or "portable". Different ones give other last
// bits; portable ones give the same on every processor, and are several times as slow. Thread-safe.
const char* Instructions();

// All that this processor can use, the fastest first. Thread-safe.
std::vector<std::string> AllInstructions();

inline constexpr absl::string_view kPortable = "portable";
inline constexpr absl::string_view kBestInstructions = "auto";  // the fastest that a processor has

// Makes all kernels of this process use these instructions. To be called before anything is computed that must agree.
// FailedPrecondition, with those that this processor has, if it lacks them. Thread-safe.
absl::Status UseInstructions(absl::string_view name);

}  // namespace tdock::kernels
