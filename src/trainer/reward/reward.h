// Scores for the answers of a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tdock::reward {

struct Answer {
  std::string prompt;
  std::string response;   // without the end token
  bool finished = false;  // the response ended with its end token, and was not truncated
  std::string truth;
  std::string source = {};  // the data source of the prompt; may be empty
};

struct Scores {
  std::vector<float> totals;  // one per answer, in their order: what the model is trained on

  // What one rule contributed to the totals, before its weight.
  struct Part {
    std::string rule;
    std::vector<float> scores;  // one per answer; NaN where the rule is not for the answer's source
    int64_t undecided = 0;      // answers that the rule could not judge; they scored 0
  };
  std::vector<Part> parts;  // may be empty: a reward need not consist of rules
};

// Implementations must be thread-safe: several batches may be scored concurrently.
class Reward {
 public:
  virtual ~Reward() = default;

  // One finite total per answer. May block. An error names the answer that caused it. Call it through CheckedScore().
  virtual absl::StatusOr<Scores> Score(std::span<const Answer> answers) = 0;
};

// The result of `reward`, if it has one finite total per answer, and one score per answer in each part. Otherwise
// Internal, naming the index and the prompt of the first answer whose total is not finite, or the two counts.
absl::StatusOr<Scores> CheckedScore(Reward& reward, std::span<const Answer> answers);

// An answer in messages: its index and its prompt.
std::string ShowAnswer(std::span<const Answer> answers, size_t index);

// 1 for exactly the true answer followed by the end token, else 0.
class ExactMatch final : public Reward {
 public:
  absl::StatusOr<Scores> Score(std::span<const Answer> answers) override;
};

}  // namespace tdock::reward
