// Copies that exceed the cache.
#pragma once

#include <cstddef>

namespace tdock {

// How the bytes of one transfer, which may consist of many pieces, are copied. A transfer that a cache cannot hold
// until it is read bypasses the cache: then memory is not read before it is overwritten, and every piece, large or
// small, is copied at the same speed; memcpy does that only for single pieces of that size. Thread-safe.
class BulkCopy {
 public:
  // The size of the whole transfer.
  explicit BulkCopy(size_t total_bytes) : streams_(total_bytes >= kStreamBytes) {}

  // The ranges must not overlap.
  void operator()(std::byte* to, const std::byte* from, size_t bytes) const;

 private:
  // About one core's share of a shared cache.
  static constexpr size_t kStreamBytes = size_t{16} << 20;

  const bool streams_;
};

}  // namespace tdock
