// Which process of a line of forks this is.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace tdock {

// The number of forks between the process that called this first and this one. Thread-safe.
inline uint64_t ProcessGeneration() {
  static std::atomic<uint64_t> generation = 0;
  [[maybe_unused]] static const int counted = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace tdock
