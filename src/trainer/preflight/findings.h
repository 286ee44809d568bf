// What a check of a configuration found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tdock::trainer {

// A number that follows from the configuration.
struct DerivedNumber {
  std::string name;  // "local_mini_batch"
  int64_t value;
  std::string how;  // "256 prompts x 5 / 8 ranks"
};

struct Violation {
  std::string keys;     // that contradict each other
  std::string what;     // how
  std::string nearest;  // legal values: "640 or 672"; may be empty
};

struct NumberReport {
  std::vector<DerivedNumber> derived;
  std::vector<Violation> violations;
};

}  // namespace tdock::trainer
