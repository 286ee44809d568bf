// The checksum of frames: XXH3 of 64 bits without a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

struct XXH3_state_s;  // of the library

namespace tdock {

uint64_t Checksum(std::span<const std::byte> bytes);

// The same for bytes that arrive in pieces. Not thread-safe.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;

  void Reset();
  void Add(std::span<const std::byte> bytes);
  // Over everything added since Reset().
  uint64_t Value() const;

 private:
  XXH3_state_s* const state_;
};

}  // namespace tdock
