// Schemas, patterns and calls from outside: what compiles has texts, and what is taken can go on to a whole text.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/testing/hostile_text.h"
#include "core/base/utf8.h"
#include "inference/grammar/grammar.h"
#include "inference/grammar/testing/text_matcher.h"

namespace {

using namespace tdock::inference;

void Require(bool holds) {
  if (!holds) std::abort();
}

// Takes bytes as the input chooses among those that may come.
void Follow(const std::shared_ptr<const Grammar>& grammar, absl::string_view choices) {
  TextMatcher matcher(grammar);
  for (const char choice : choices.substr(0, 200)) {
    if (matcher.complete()) return;
    bool goes_on = matcher.may_end();
    for (int i = 0; i < 256; ++i) {
      const char byte = static_cast<char>(choice + i);
      TextMatcher next = matcher;
      if (!next.Push(absl::string_view(&byte, 1)) && !next.Push(absl::string_view(&byte, 1), /*special=*/true))
        continue;
      matcher = next;
      goes_on = true;
      break;
    }
    Require(goes_on);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  GrammarSpec spec;
  switch (data[0] % 5) {
    case 0:
      spec = {.kind = GrammarSpec::Kind::kJsonSchema, .text = std::string(text)};
      break;
    case 1:
      spec = {.kind = GrammarSpec::Kind::kRegex, .text = std::string(text)};
      break;
    case 2:
      spec = {.kind = GrammarSpec::Kind::kChoices,
              .choices = {std::string(text), std::string(text.substr(text.size() / 2))}};
      break;
    default:
      spec = {.kind = GrammarSpec::Kind::kCalls,
              .calls = {{.name = std::string(text.substr(0, 4)), .parameters = std::string(text)}, {.name = "f"}}};
      if (data[0] % 5 == 4) spec.tags = ArgumentTags{"<", ">", "</>"};
      spec.before_call = "<|c|>";
      spec.special_tokens = {"<|c|>"};
  }
  const auto grammar = CompileGrammar(spec);
  tdock::CheckMessage(grammar.status());
  if (!grammar.ok()) return 0;
  Require((*grammar)->height((*grammar)->start()) != Network::kNoHeight);
  Follow(*grammar, text);
  return 0;
}
