// Limits of the tokens of answers: grammars, and calls of tools that an answer must make.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "engine/sampling/token_constraint.h"
#include "inference/grammar/grammar.h"
#include "inference/grammar/token_masks.h"
#include "inference/protocol/ask.h"
#include "inference/protocol/problem.h"
#include "inference/served_model.h"
#include "text/chat_template.h"
#include "text/replies/reply_forms.h"

namespace tdock::inference {

// An answer of a grammar. It ends where the grammar lets it, and only there: what it says may be a stop text.
class GrammarConstraint final : public engine::TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<TokenMasks> masks) : masks_(std::move(masks)), place_(masks_->Start()) {}

  std::span<const uint64_t> Allowed() override {
    if (mask_ == nullptr) mask_ = masks_->Allowed(place_);
    return *mask_;
  }

  void Accept(int32_t token) override {
    masks_->Accept(place_, token);
    mask_ = nullptr;
  }

  bool complete() const override { return place_.complete(); }
  bool may_end() const override { return place_.may_end(); }

 private:
  const std::shared_ptr<TokenMasks> masks_;
  TokenMasks::Place place_;
  std::shared_ptr<const TokenMask> mask_;
};

// Adds the text around calls and their arguments to a grammar of calls, as the model's replies spell them.
// `reasoning_open`: the prompt has begun reasoning, which then ends at once. Unimplemented names a form in which this
// server cannot make a model call tools.
absl::StatusOr<GrammarSpec> SpellCalls(GrammarSpec spec, text::ReplyForm form, const text::ChatTemplate& chat_template,
                                       bool reasoning_open);

// Thread-safe. The tokens of a large vocabulary are looked at when the first grammar is asked for, which takes a while.
class Constraints {
 public:
  // Makes what limits an answer, as engine::Request::constrain.
  using Make = std::function<std::unique_ptr<engine::TokenConstraint>(int64_t sample)>;

  // The model must outlive it.
  explicit Constraints(const ServedModel& model) : model_(model) {}

  // For the answers to a prompt of an ask that has a grammar. The problem names the field, and the place in it.
  std::variant<Make, Problem> For(const Ask& ask, std::span<const int32_t> prompt);

 private:
  const ServedModel& model_;
  std::once_flag made_;
  std::unique_ptr<Grammars> grammars_;
};

}  // namespace tdock::inference
