// The inner loops of this module, compiled for several instruction sets. Internal to this module.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "kernels/attention.h"

namespace tdock::kernels {

// Sums are added up in this many lanes: number i goes to lane i modulo kLanes, and at the end the lanes are added in
// halves: i and i + 8, then i and i + 4, i + 2, i + 1.
constexpr int64_t kLanes = 16;
// At most so many query heads are worked on at the same time.
constexpr int64_t kHeadsOfTile = 4;

template <class T>
using AttendLoop = void (*)(const T* query, const BlockedRows<T>& keys, const BlockedRows<T>& values,
                            const Visible& visible, const AttentionShape& shape, T* output, float* scratch);

// Loops for one instruction set. Those of two may differ in the last bit: some multiply and add in one rounding.
struct Loops {
  const char* instructions;
  AttendLoop<float> attend_float;
  AttendLoop<c10::BFloat16> attend_bfloat16;
  void (*exp)(const float* x, float* y, int64_t size);
};

// Those of the best instruction set that this processor has; always the same in a process.
const Loops& BestLoops();

}  // namespace tdock::kernels
