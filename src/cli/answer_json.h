// Answers as JSON.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/json_text.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tdock::cli {

// Adds text, finish_reason, ids, log_probs, and top_log_probs if the completion has them. The errors of TextOf().
absl::Status AddAnswer(const engine::Completion& completion, const text::Tokenizer& tokenizer,
                       nlohmann::ordered_json& json);

// One line, without its end. What is not UTF-8 becomes U+FFFD.
std::string LineOf(const nlohmann::ordered_json& json);

}  // namespace tdock::cli
