// Copies of more bytes than a cache holds.
#pragma once

#include <cstddef>

namespace tdock {

// How the bytes of one transfer are copied, which may be many pieces. What a cache cannot keep until it is read is
// written around it: memory then is not read before it is overwritten, and every piece, large or small, is copied at
// the same speed; memcpy does that only for a single piece of that size. Thread-safe.
class BulkCopy {
 public:
  // Of the whole transfer.
  explicit BulkCopy(size_t total_bytes) : streams_(total_bytes >= kStreamBytes) {}

  // The ranges do not overlap.
  void operator()(std::byte* to, const std::byte* from, size_t bytes) const;

 private:
  // About what one core may call its own of a shared cache.
  static constexpr size_t kStreamBytes = size_t{16} << 20;

  const bool streams_;
};

}  // namespace tdock
