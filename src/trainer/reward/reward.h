// Scores for the answers of a model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"

namespace tdock::reward {

struct Answer {
  std::string prompt;
  std::string response;   // without the end token
  bool finished = false;  // the response ended with its end token, and was not truncated
  std::string truth;
  std::string source = {};  // the data source of the prompt; may be empty
  // What only other programs are told: the turns of the prompt, as a JSON list of {"role", "content"}, empty where it
  // is plain text; and further columns of the data by name.
  std::string messages = {};
  std::vector<std::pair<std::string, std::string>> columns = {};
};

struct Scores {
  std::vector<float> totals;  // one per answer, in their order: what the model is trained on; NaN: it is left out

  // What one rule contributed to the totals, before its weight.
  struct Part {
    std::string rule;
    std::vector<float> scores;  // one per answer; NaN where the rule is not for the answer's source
    int64_t undecided = 0;      // answers that the rule could not judge; they scored 0
  };
  std::vector<Part> parts;  // may be empty: a reward need not consist of rules
  // What was said of each answer, for people; empty where nothing was said of any.
  std::vector<std::string> messages = {};
};

// The place of a total in the range of totals that its answer could have got.
enum class Bound { kUnknown, kBetween, kLeast, kGreatest };

// The same of one answer.
struct AnswerScore {
  float total = 0;
  bool left_out = false;          // it has no score, and the run goes on without it (reward.on_error=drop)
  Bound bound = Bound::kUnknown;  // of the total; known where rules alone score

  struct Part {
    std::string name;                    // of the rule, or of another source of scores
    std::optional<float> score = {};     // before its weight; nothing where it is not for this answer
    bool undecided = false;              // it could not judge the answer, which scored 0
    bool failed = false;                 // there was no score; `score` is what stands for it, if anything does
    std::optional<double> seconds = {};  // from the question to the answer, where another program gave it
    std::string message = {};            // for people
  };
  std::vector<Part> parts = {};
};

// Gets the score of answer `index`, or why it has none. May be called by several threads at once.
using ScoreSink = std::function<void(size_t index, absl::StatusOr<AnswerScore> score)>;

// Implementations must be thread-safe: several batches may be scored concurrently.
class Reward {
 public:
  virtual ~Reward() = default;

  // One total per answer, as in Scores. May block. An error names the answer that caused it. Call it through
  // CheckedScore().
  virtual absl::StatusOr<Scores> Score(std::span<const Answer> answers) = 0;

  // Passes on each score when it is known, each answer once, in any order; blocks until all are. By default they come
  // from one call of Score(), checked as CheckedScore() does. An error is that of `check_stop`, or one that concerns
  // more than an answer; the answers that were not passed on by then have no score.
  virtual absl::Status ScoreEach(std::span<const Answer> answers, const StopCheck& check_stop, const ScoreSink& sink);
};

// All scores, if each answer has a finite total or is left out. The first error ends it. Internal, naming the index and
// the prompt of an answer whose total is not finite, or the counts where there are not as many scores as answers.
absl::StatusOr<Scores> CheckedScore(
    Reward& reward, std::span<const Answer> answers, const StopCheck& check_stop = [] { return absl::OkStatus(); });

// The scores of a batch: parts in the order in which they first occur.
Scores Gathered(std::span<const AnswerScore> each);

// An answer in messages: its index and its prompt.
std::string ShowAnswer(std::span<const Answer> answers, size_t index);

// 1 for exactly the true answer followed by the end token, else 0.
class ExactMatch final : public Reward {
 public:
  absl::StatusOr<Scores> Score(std::span<const Answer> answers) override;
};

}  // namespace tdock::reward
