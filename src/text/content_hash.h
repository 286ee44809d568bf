// A hash that identifies bytes: XXH3 of 128 bits without a seed, which guards against accidents, not forgeries.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

struct XXH3_state_s;  // of the library

namespace tdock::text {

struct ContentHash {
  uint64_t high = 0;
  uint64_t low = 0;

  auto operator<=>(const ContentHash&) const = default;
};

// 32 hexadecimal digits, the highest first.
std::string Hex(const ContentHash& hash);

ContentHash HashOf(absl::string_view bytes);

// The hash of bytes that arrive in pieces. Not thread-safe.
class ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(const ContentHasher&) = delete;
  ContentHasher& operator=(const ContentHasher&) = delete;

  void Add(absl::string_view bytes);
  // Adds the length of `field` before it, so that different lists of fields hash differently.
  void AddField(absl::string_view field);
  // Of all that was added.
  ContentHash Value() const;

 private:
  XXH3_state_s* const state_;
};

}  // namespace tdock::text
