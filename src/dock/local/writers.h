// The writers of cells.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tdock::dock {

// The consumers under whose leases cells were put, by the numbers that blocks store. A name stays when its consumer is
// dropped, as its cells do. Not thread-safe.
class Writers {
 public:
  // The writer of puts without a lease; it has no name.
  static constexpr uint32_t kNobody = 0;

  // The number of a name, a new one if necessary.
  uint32_t NumberOf(absl::string_view name) {
    if (const std::optional<uint32_t> known = Find(name)) return *known;
    const auto number = static_cast<uint32_t>(names_.size());
    names_.emplace_back(name);
    numbers_.emplace(name, number);
    return number;
  }
  // No number if no consumer of this name has put anything.
  std::optional<uint32_t> Find(absl::string_view name) const {
    const auto it = numbers_.find(name);
    return it == numbers_.end() ? std::nullopt : std::optional(it->second);
  }
  const std::string& NameOf(uint32_t number) const { return names_[number]; }
  // Those of the numbers from 1 on.
  std::span<const std::string> names() const { return std::span(names_).subspan(1); }

 private:
  std::vector<std::string> names_{1};  // by number
  absl::flat_hash_map<std::string, uint32_t> numbers_;
};

}  // namespace tdock::dock
