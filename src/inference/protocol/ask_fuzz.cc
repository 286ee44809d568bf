// The body of a request from outside: what is read is within its limits, and what is refused has an error object.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/json_text.h"
#include "inference/protocol/ask.h"
#include "inference/protocol/weights_ask.h"

namespace {

using namespace tdock::inference;

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckProblem(const Problem& problem) {
  Check(problem.status == 400 && !problem.message.empty());
  const auto body = tdock::ParseJsonObject(BodyOf(problem), 10);
  Check(body.ok() && body->contains("error"));
}

bool IsConversation(const Ask& ask) { return ask.form == Form::kChat || ask.form == Form::kResponses; }

void CheckGrammar(const Ask& ask) {
  const AskLimits limits;
  Check(!ask.grammar_field.empty());
  const GrammarSpec& grammar = *ask.grammar;
  Check((grammar.kind == GrammarSpec::Kind::kCalls) == !grammar.calls.empty());
  Check((grammar.kind == GrammarSpec::Kind::kChoices) == !grammar.choices.empty());
  Check(static_cast<int64_t>(grammar.choices.size()) <= limits.max_choices);
  for (const CallRule& rule : grammar.calls) {
    Check(!rule.name.empty());
    Check(rule.parameters.empty() || tdock::ParseJsonObject(rule.parameters, limits.max_depth).ok());
  }
  if (grammar.kind == GrammarSpec::Kind::kJsonSchema)
    Check(tdock::ParseJsonObject(grammar.text, limits.max_depth).ok());
}

void CheckAsk(const Ask& ask) {
  const AskLimits limits;
  Check(ask.n >= 1 && ask.n <= limits.max_answers);
  Check(IsConversation(ask) == ask.prompts.empty() && IsConversation(ask) != ask.turns.empty());
  Check(static_cast<int64_t>(ask.prompts.size()) * ask.n <= limits.max_answers || IsConversation(ask));
  Check(static_cast<int64_t>(ask.turns.size()) <= limits.max_messages + 1);  // with the instructions
  Check(static_cast<int64_t>(ask.request_id.size()) <= limits.max_request_id_bytes);
  Check(static_cast<int64_t>(ask.sampling.stop.value_or(std::vector<std::string>()).size()) <= limits.max_stops);
  Check(ask.sampling.max_tokens.value_or(1) >= 1 || ask.echo || ask.prompt_log_probs);
  Check(ask.sampling.temperature.value_or(0) >= 0);
  Check(ask.max_prompt_tokens.value_or(1) != 0 && ask.max_prompt_tokens.value_or(1) >= -1);
  Check(!ask.stream || (!ask.echo && !ask.prompt_log_probs));
  Check(!ask.continues_final_turn ||
        (!ask.generation_prompt && ask.turns.back().role == tdock::text::Role::kAssistant));
  Check((ask.form == Form::kResponses) != ask.repeated.empty());
  if (ask.grammar) CheckGrammar(ask);
  for (const AskedPrompt& prompt : ask.prompts) {
    const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt);
    if (tokens == nullptr) continue;
    for (const int32_t token : *tokens) Check(token >= 0);
  }
}

void CheckTokenize(const TokenizeAsk& tokenize) {
  Check(tokenize.ask.turns.empty() == (tokenize.ask.prompts.size() == 1));
}

void CheckWeights(const WeightsAsk& ask) {
  Check(ask.folder.empty() != ask.tensors.empty());
  Check(ask.version.value_or(0) >= 0 && ask.version.value_or(0) <= kMostVersion);
  for (const TensorAsk& tensor : ask.tensors) {
    Check(!tensor.name.empty() && tensor.shape.size() <= 8);
    for (const int64_t size : tensor.shape) Check(size >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto read = ReadAsk(static_cast<Form>(data[0] % 4), body);
  if (const auto* problem = std::get_if<Problem>(&read)) {
    CheckProblem(*problem);
  } else {
    CheckAsk(std::get<Ask>(read));
  }
  const auto sampling = ReadSampling(body);
  if (const auto* problem = std::get_if<Problem>(&sampling)) CheckProblem(*problem);
  const auto tokenize = ReadTokenize(body);
  if (const auto* problem = std::get_if<Problem>(&tokenize)) {
    CheckProblem(*problem);
  } else {
    CheckTokenize(std::get<TokenizeAsk>(tokenize));
  }
  const auto detokenize = ReadDetokenize(body);
  if (const auto* problem = std::get_if<Problem>(&detokenize)) CheckProblem(*problem);
  const auto weights = ReadWeights(body);
  if (const auto* problem = std::get_if<Problem>(&weights)) {
    CheckProblem(*problem);
  } else {
    CheckWeights(std::get<WeightsAsk>(weights));
  }
  const auto upload = ReadUpload(body);
  if (const auto* problem = std::get_if<Problem>(&upload)) {
    CheckProblem(*problem);
  } else {
    const auto& ask = std::get<UploadAsk>(upload);
    Check(!ask.upload.empty() && ask.offset.has_value() != ask.checksum.has_value());
  }
  return 0;
}
