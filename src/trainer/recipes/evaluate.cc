#include "trainer/recipes/evaluate.h"

#include <algorithm>

#include "core/base/status.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {

absl::StatusOr<std::vector<EncodedProblem>> EncodeProblems(const text::PromptSet& problems,
                                                           const text::Tokenizer& tokenizer) {
  std::vector<EncodedProblem> encoded;
  for (const text::Problem& problem : problems) {
    EncodedProblem& e = encoded.emplace_back();
    TDOCK_ASSIGN_OR_RETURN(e.prompt, tokenizer.Encode(problem.prompt));
    TDOCK_ASSIGN_OR_RETURN(e.answer, tokenizer.Encode(problem.answer));
    e.answer.push_back(tokenizer.eos_id().value());
  }
  return encoded;
}

absl::StatusOr<Evaluation> Evaluate(const engine::Engine& engine, const text::Tokenizer& tokenizer,
                                    const text::PromptSet& problems, const std::vector<EncodedProblem>& encoded,
                                    int64_t max_response_length, int64_t samples_kept) {
  std::vector<engine::Prompt> prompts;
  for (const EncodedProblem& problem : encoded) prompts.push_back({problem.prompt, 1});
  TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions,
                         engine.Generate(prompts, {.temperature = 0, .max_new_tokens = max_response_length}));
  Evaluation result;
  int64_t right = 0;
  for (size_t i = 0; i < encoded.size(); ++i) {
    const bool correct = completions[i].tokens == encoded[i].answer;
    right += correct ? 1 : 0;
    if (static_cast<int64_t>(i) >= samples_kept) continue;
    TDOCK_ASSIGN_OR_RETURN(std::string text, ResponseText(tokenizer, completions[i].tokens, completions[i].finished));
    result.samples.push_back({problems[i].prompt, std::move(text), problems[i].answer, correct ? 1.0 : 0.0, correct});
  }
  result.accuracy = static_cast<double>(right) / static_cast<double>(std::max<size_t>(encoded.size(), 1));
  return result;
}

}  // namespace tdock::trainer
