// Answers that are JSON objects. They end with the object, and only there: what it says may be a stop text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/sampling/token_constraint.h"
#include "serve/grammar/json_acceptor.h"
#include "serve/grammar/token_masks.h"

namespace tdock::serve {

class JsonConstraint final : public engine::TokenConstraint {
 public:
  explicit JsonConstraint(std::shared_ptr<TokenMasks> masks) : masks_(std::move(masks)) {}

  std::span<const uint64_t> Allowed() override {
    if (mask_ == nullptr) mask_ = masks_->For(acceptor_);
    return *mask_;
  }

  void Accept(int32_t token) override {
    if (acceptor_.complete()) return;
    acceptor_.Push(masks_->BytesOf(token));
    mask_ = nullptr;
  }

  bool complete() const override { return acceptor_.complete(); }
  bool may_end() const override { return complete(); }

 private:
  const std::shared_ptr<TokenMasks> masks_;
  JsonAcceptor acceptor_;
  std::shared_ptr<const TokenMask> mask_;
};

}  // namespace tdock::serve
