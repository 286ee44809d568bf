// What a trainer asks and what the right answer is.
#pragma once

#include <string>
#include <vector>

namespace tdock::text {

struct Problem {
  std::string prompt;
  std::string answer;  // without the end token

  friend bool operator==(const Problem&, const Problem&) = default;
};

using PromptSet = std::vector<Problem>;

}  // namespace tdock::text
