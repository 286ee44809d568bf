#include "core/tensor/bulk_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tdock {
namespace {

// Smaller pieces are not worth the wait for the last write.
constexpr size_t kLeastPieceBytes = 4 << 10;

#ifdef __SSE2__
constexpr size_t kLine = 64, kPrefetchAhead = 512;

void Stream(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    __builtin_prefetch(from + at + kPrefetchAhead, /*rw=*/0, /*locality=*/0);
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const line = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  // Such writes are not ordered with those that publish them.
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
}
#else
void Stream(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace

void BulkCopy::operator()(std::byte* to, const std::byte* from, size_t bytes) const {
  if (bytes == 0) return;
  if (streams_ && bytes >= kLeastPieceBytes) {
    Stream(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace tdock
