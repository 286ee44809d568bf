// What limits the tokens of one answer, as its tokens come.
#pragma once

#include <cstdint>
#include <span>

namespace tdock::engine {

// Not thread-safe; the engine calls it from one thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit t % 64 of word t / 64: whether token t may come next. Tokens beyond may not. Valid until Accept().
  virtual std::span<const uint64_t> Allowed() = 0;

  // The token that came, one of those allowed.
  virtual void Accept(int32_t token) = 0;

  // True if the answer is whole, so that it ends with the token that came last, with all of its text.
  virtual bool complete() const { return false; }

  // True if an end token, a stop token or a stop text may end the answer here. Until then they are text like any other.
  virtual bool may_end() const { return true; }
};

}  // namespace tdock::engine
