// For tests: whether texts are of a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "inference/grammar/automaton.h"
#include "inference/grammar/grammar.h"

namespace tdock::inference {

// A text as it arrives. Cheap to copy; copies share what they find out, and are of one thread.
class TextMatcher {
 public:
  explicit TextMatcher(std::shared_ptr<const Grammar> grammar)
      : automaton_(std::make_shared<Automaton>(std::move(grammar))), position_(automaton_->Start()) {}

  // False if the text cannot go on so; then nothing more must be pushed.
  bool Push(absl::string_view bytes, bool special = false) {
    automaton_->Allow(int64_t{1} << 40);
    for (const char byte : bytes) {
      const auto did = automaton_->Take(position_, static_cast<uint8_t>(byte), special).did;
      if (did == Automaton::Did::kNothing || did == Automaton::Did::kLeft) return false;
    }
    return true;
  }
  bool may_end() const { return automaton_->may_end(position_); }
  bool complete() const { return automaton_->complete(position_); }

 private:
  std::shared_ptr<Automaton> automaton_;
  Position position_;
};

inline bool Matches(const std::shared_ptr<const Grammar>& grammar, absl::string_view text) {
  TextMatcher matcher(grammar);
  return matcher.Push(text) && matcher.may_end();
}

}  // namespace tdock::inference
