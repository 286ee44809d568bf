// The scores of a reward model.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/decoder/decoder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/preference_objective.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// How a reward model reads answers where it has another tokenizer or template than the policy: as texts, put together
// by its own template where the prompt is a list of turns. Tools and documents of a prompt are not among its turns, and
// not rendered.
struct OwnTexts {
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // null: it has none, and takes only prompts that are plain text
};

// An answer to score, of which a model that reads the policy's tokens uses the first two.
struct AnswerToScore {
  std::span<const int32_t> prompt = {}, response = {};
  absl::string_view prompt_text = {}, messages = {}, response_text = {};  // as reward::Answer has them
  bool finished = true;
};

// Thread-safe if the workers are.
class ModelScores {
 public:
  // `decoder` has a value head. What is referred to must outlive it.
  ModelScores(const model::Decoder& decoder, const ForwardOptions& forward, AnswerScore score,
              const std::optional<OwnTexts>& texts)
      : decoder_(decoder), forward_(forward), score_(score), texts_(texts) {}

  const model::Decoder& decoder() const { return decoder_; }
  // Whether it reads texts instead of the policy's tokens.
  bool reads_texts() const { return texts_.has_value(); }

  // One score for each answer. InvalidArgument names an answer that cannot be read, and one that is longer than the
  // model's positions. Internal for a score that is not finite. May throw.
  absl::StatusOr<std::vector<float>> Score(std::span<const AnswerToScore> answers) const;

 private:
  absl::StatusOr<std::pair<std::vector<int32_t>, std::vector<int32_t>>> Encode(const AnswerToScore& answer) const;

  const model::Decoder& decoder_;
  const ForwardOptions forward_;
  const AnswerScore score_;
  const std::optional<OwnTexts> texts_;
};

// Consumer "reward", of rows: writes the model's scores as rewards.
std::unique_ptr<Stage> MakeModelRewardStage(const ModelScores& scores);

}  // namespace tdock::trainer
