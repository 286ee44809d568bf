// Gives arbitrary bytes of a frame valid checksums, as an attacker would, so that tests and fuzzers reach the code
// behind the checks. Missing parts are skipped.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tdock {

template <class T>
std::optional<T> NumberAt(const std::string& bytes, uint64_t at) {
  T value;
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return std::nullopt;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The checksum of the header, which is also over those of the blocks.
inline void SignHeader(std::string& bytes) {
  const std::optional<uint64_t> end = NumberAt<uint64_t>(bytes, 24);
  if (!end || *end < 48 || *end > bytes.size()) return;
  const uint64_t checksum = XXH3_64bits(bytes.data(), *end - 8);
  std::memcpy(bytes.data() + *end - 8, &checksum, sizeof(checksum));
}

// The checksum of the block that is described at `at`. False if its description is not within the bytes.
inline bool SignBlock(std::string& bytes, uint64_t at) {
  const auto begin = NumberAt<uint64_t>(bytes, at), size = NumberAt<uint64_t>(bytes, at + 8);
  if (!begin || !size || !NumberAt<uint64_t>(bytes, at + 16)) return false;
  if (*begin > bytes.size() || *size > bytes.size() - *begin) return true;
  const uint64_t checksum = XXH3_64bits(bytes.data() + *begin, *size);
  std::memcpy(bytes.data() + at + 16, &checksum, sizeof(checksum));
  return true;
}

// The checksums of the blocks, as far as their columns can be read, and then that of the header.
inline void SignFrame(std::string& bytes) {
  const uint32_t columns = NumberAt<uint32_t>(bytes, 12).value_or(0);
  uint64_t at = 40;
  bool there = true;
  for (uint32_t column = 0; column < columns && there; ++column) {
    const std::optional<uint32_t> name = NumberAt<uint32_t>(bytes, at);
    at += 4 + uint64_t{name.value_or(0)};
    const std::optional<uint8_t> kind = NumberAt<uint8_t>(bytes, at);
    const std::optional<uint16_t> dimensions = NumberAt<uint16_t>(bytes, at + 2);
    at += 4 + 8 * uint64_t{dimensions.value_or(0)};
    there = name && kind && dimensions;
    for (int block = kind == uint8_t{0} ? 1 : 2; block > 0 && there; --block, at += 24) there = SignBlock(bytes, at);
  }
  SignHeader(bytes);
}

}  // namespace tdock
