// Scores for the answers of a model.
#pragma once

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
};

// Implementations must be thread-safe: several batches may be scored concurrently.
class Reward {
 public:
  virtual ~Reward() = default;

  // One finite score per answer, in their order. May block. Call it through CheckedScore().
  virtual absl::StatusOr<std::vector<float>> Score(std::span<const Answer> answers) = 0;
};

// The result of `reward`, if that is one finite score per answer. Otherwise Internal, naming the index and the prompt
// of the first sample whose score is not finite, or the two counts.
absl::StatusOr<std::vector<float>> CheckedScore(Reward& reward, std::span<const Answer> answers);

// 1 for exactly the true answer followed by the end token, else 0.
class ExactMatch final : public Reward {
 public:
  absl::StatusOr<std::vector<float>> Score(std::span<const Answer> answers) override;
};

}  // namespace tdock::reward
