// Where a message is written to: twice, first only to count its bytes, so that it then is written to one piece of
// memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tdock::service {

// The size of a number with seven bits in each byte.
inline size_t VarintBytes(uint64_t value) { return (static_cast<size_t>(std::bit_width(value | 1)) + 6) / 7; }

// Counts what would be written.
class ByteCounter {
 public:
  size_t count() const { return count_; }
  void Varint(uint64_t value) { count_ += VarintBytes(value); }
  void Bytes(const void*, size_t bytes) { count_ += bytes; }
  // Around what has its length before it.
  size_t Begin() { return count_; }
  void End(size_t begin) { Varint(count_ - begin); }

 private:
  size_t count_ = 0;
};

// Writes to memory that has room for all that a ByteCounter counted.
class ByteWriter {
 public:
  explicit ByteWriter(char* to) : to_(to) {}

  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) *to_++ = static_cast<char>(value | 0x80);
    *to_++ = static_cast<char>(value);
  }
  void Bytes(const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to_, from, bytes);
    to_ += bytes;
  }
  // Most lengths need one byte; for others, what they are before is moved.
  char* Begin() { return ++to_; }
  void End(char* begin) {
    const auto length = static_cast<size_t>(to_ - begin);
    if (length >= 0x80) std::memmove(begin + VarintBytes(length) - 1, begin, length);
    to_ = begin - 1;
    Varint(length);
    to_ += length;
  }

 private:
  char* to_;
};

}  // namespace tdock::service
