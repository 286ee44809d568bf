// Grammars of answers: JSON, regular expressions, choices and calls of tools, compiled to networks over bytes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/grammar/network.h"

namespace tdock::inference {

// See network.h.
using Grammar = Network;

// A function that an answer may call.
struct CallRule {
  std::string name = {};
  std::string parameters = {};  // the JSON schema of its arguments, which are an object; empty: any object
  // Literal text around the arguments, after before_call and before after_call of GrammarSpec. Both empty:
  // {"name": NAME, "arguments": ARGUMENTS}.
  std::string before = {}, after = {};
};

// Arguments that are no JSON object: each of them is `before_name` NAME `before_value` VALUE `after_value`, in the
// order of the schema. A text is written as it stands, without `after_value` in it, and every other value as JSON.
struct ArgumentTags {
  std::string before_name = {}, before_value = {}, after_value = {};
};

// Describes all answers that a request allows.
struct GrammarSpec {
  enum class Kind { kJsonObject, kJsonSchema, kRegex, kChoices, kCalls };
  Kind kind = Kind::kJsonObject;
  std::string text = {};                  // the JSON schema or the pattern
  std::vector<std::string> choices = {};  // the answer is one of them

  // For kCalls: the answer is before_calls, calls with between_calls between them, and after_calls. Each call has
  // before_call and after_call around it.
  std::vector<CallRule> calls = {};
  bool one_call = false;  // otherwise one or more
  std::string before_call = {}, after_call = {};
  std::string before_calls = {}, between_calls = {}, after_calls = {};
  std::optional<ArgumentTags> tags = {};  // absent: arguments are JSON
  // Texts that are one special token each. Where the literal text of calls has one, that token is sampled, and not its
  // spelling. Grammars::For() adds those of its vocabulary.
  std::vector<std::string> special_tokens = {};
};

// Compiles a grammar. Between tokens of JSON there are at most two blank characters, objects and lists are nested at
// most kMaxNested deep, and properties come in the order of the schema. InvalidArgument names the keyword and its place
// in the schema, or the part of the pattern, that is not supported or cannot be met, and the limit that it exceeds.
absl::StatusOr<std::shared_ptr<const Grammar>> CompileGrammar(const GrammarSpec& spec);

}  // namespace tdock::inference
