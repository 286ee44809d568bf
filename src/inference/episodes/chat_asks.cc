#include "inference/episodes/chat_asks.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::inference {

std::optional<Problem> CheckChatAsk(const Ask& ask) {
  const SamplingAsk& sampling = ask.sampling;
  struct Refused {
    const char* field;
    bool is_asked;
    const char* why;
  };
  const Refused refused[] = {
      {"n", ask.n > 1, "an episode has one reply to a request: ask again for another"},
      {"top_logprobs", ask.log_probs.value_or(0) > 0, "only the tokens of the reply have log-probabilities"},
      {"prompt_logprobs", ask.prompt_log_probs.has_value(), "only the tokens of the reply have log-probabilities"},
      {"continue_final_message", ask.continues_final_turn, "each reply is a turn of its own"},
      {"add_generation_prompt", !ask.generation_prompt, "each reply is a turn of its own"},
      {"documents", !ask.context.documents.empty(), "give them as text of a message"},
      {"truncate_prompt_tokens", ask.max_prompt_tokens.has_value(), "a row has its whole prompt: shorten the messages"},
      {"reasoning_effort", !ask.reasoning_effort.empty() && ask.reasoning_effort != "medium",
       "give the variable that the chat template has for it in 'chat_template_kwargs'"},
      {"skip_special_tokens", !ask.skip_special_tokens, "a conversation goes on by what its replies say without them"},
      {"include_stop_str_in_output", ask.include_stop, "a conversation goes on by what its replies say without it"},
      {"ignore_eos", sampling.ignore_eos.value_or(false), "the model says where its replies end"},
      {"min_tokens", sampling.min_tokens.value_or(0) > 0, "the model says where its replies end"},
      {"stop_token_ids", sampling.stop_token_ids.has_value(), "give texts in 'stop'"},
      {"allowed_token_ids", sampling.allowed_token_ids.has_value(), "give a schema, a choice or a regular expression"},
      {"logit_bias", sampling.logit_bias.has_value() && !sampling.logit_bias->empty(),
       "a row is trained on what the model says by itself"}};
  for (const auto& [field, is_asked, why] : refused) {
    if (!is_asked) continue;
    return Problem{.message = absl::StrCat("'", field, "' cannot be asked for of a model that is trained: ", why),
                   .param = field,
                   .code = "unsupported_value"};
  }
  return std::nullopt;
}

std::vector<std::string> UnusedSampling(const SamplingAsk& ask, double temperature) {
  std::vector<std::string> unused;
  const auto add = [&unused](const char* name, const auto& asked, auto of_run) {
    if (asked && *asked != of_run) unused.push_back(absl::StrCat(name, "=", *asked));
  };
  add("temperature", ask.temperature, temperature);
  add("top_p", ask.top_p, 1.0);
  add("min_p", ask.min_p, 0.0);
  add("top_k", ask.top_k, int64_t{0});
  add("repetition_penalty", ask.repetition_penalty, 1.0);
  add("presence_penalty", ask.presence_penalty, 0.0);
  add("frequency_penalty", ask.frequency_penalty, 0.0);
  if (ask.seed) unused.push_back(absl::StrCat("seed=", static_cast<int64_t>(*ask.seed)));
  return unused;
}

}  // namespace tdock::inference
