// What a server knows of its model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "inference/protocol/ask.h"
#include "inference/token_texts.h"
#include "text/chat_template.h"
#include "text/replies/reply_forms.h"
#include "text/tokenizer.h"

namespace tdock::inference {

struct ServedModel {
  std::string instance = {};            // 16 hex digits that no other server has; ModelServer::Start() draws them
  std::vector<std::string> names = {};  // that clients may ask for; the first is what answers say
  const text::Tokenizer* tokenizer = nullptr;
  std::shared_ptr<const TokenTexts> texts = {};  // of its tokens; ModelServer::Start() makes them
  absl::StatusOr<text::ChatTemplate> chat_template = absl::NotFoundError("there is none");
  bool shows_today = false;                              // the template has the time of each request
  text::ReplyForm reply_form = text::ReplyForm::kPlain;  // in which it calls tools and reasons
  bool has_reasoning = false;                            // replies have reasoning in that form
  std::optional<std::string> system = {};  // what a system turn says before conversations that begin without one
  std::vector<int32_t> end_tokens = {};
  int64_t context_length = 0;
  int64_t vocab_size = 0;  // ids below it are tokens
  SamplingAsk preferred = {};
  // Engines of the same model, one for each replica. Whoever serves has them for itself.
  std::vector<engine::Engine*> engines = {};
  std::string dtype = {};     // in which they compute, such as "bfloat16"
  std::string kernels = {};   // instructions that they compute with, such as "avx2"; empty: libtorch's
  bool int8_weights = false;  // of these engines
  // The decoder of another folder for the same tokenizer, with the shapes of the one that is served, not packed.
  // Thread-safe.
  std::function<absl::StatusOr<model::Decoder>(const std::string& folder)> load = {};
  // One with weights that are still to be written. Thread-safe.
  std::function<absl::StatusOr<model::Decoder>()> blank = {};
};

}  // namespace tdock::inference
