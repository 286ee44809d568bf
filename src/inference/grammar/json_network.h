// The parts that grammars of JSON are made of, as nodes of a network.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "inference/grammar/char_dfa.h"
#include "inference/grammar/network.h"

namespace tdock::inference {

// Adds JSON to a network. A function that takes `to` adds what lies between two nodes; one that does not returns the
// node behind what it adds. An entry is what an object, a list or a text is called by: it begins behind the bracket or
// quote.
//
// Texts are UTF-8, without escapes of surrogates.
class JsonNetwork {
 public:
  // The builder must outlive it.
  explicit JsonNetwork(NetworkBuilder& builder) : builder_(builder) {}

  NetworkBuilder& builder() { return builder_; }

  // At most two blank characters.
  NodeId AddBlanks(NodeId from);
  // A colon, and a comma, with the blanks around them. A comma counts.
  NodeId AddColon(NodeId from);
  NodeId AddComma(NodeId from);

  void AddAnyValue(NodeId from, NodeId to);
  // A value, spelled in one way.
  void AddLiteral(const nlohmann::ordered_json& value, NodeId from, NodeId to);
  // A name with its quotes, whatever it is; or one that `dfa` accepts.
  NodeId AddAnyName(NodeId from);
  NodeId AddName(const CharDfa& dfa, NodeId from);

  // Text as it is, which `dfa` accepts.
  void AddRaw(const CharDfa& dfa, NodeId from, NodeId to);

  // The entries of any object, and of any list.
  NodeId any_object();
  NodeId any_list();
  // The entry of a text with so many characters.
  NodeId TextEntry(uint32_t min, std::optional<uint32_t> max);
  // The entry of a text that `dfa` accepts. Characters that JSON escapes have their short escapes, and control
  // characters without one are only in it where the automaton names them singly.
  NodeId TextEntry(const CharDfa& dfa);
  // A node of a part that is called: it has no limit.
  NodeId NewEntry();

 private:
  enum class Spelling : uint8_t { kRaw, kQuoted };

  void AddDfa(const CharDfa& dfa, Spelling spelling, NodeId from, NodeId to);
  void AddQuoted(char32_t low, char32_t high, NodeId from, NodeId to, std::optional<NodeId>& escape);
  void AddChars(char32_t low, char32_t high, NodeId from, NodeId to);
  void AddSequences(absl::string_view low, absl::string_view high, NodeId from, NodeId to);
  NodeId Continuation(size_t bytes, NodeId to);
  // The characters of a text, from `base` to `base`.
  void AddTextChars(NodeId base, bool counts);
  NodeId NewTextEntry(uint32_t min, std::optional<uint32_t> max);
  // Items with commas between them, of which add_item(from) adds one and returns the node behind it.
  void AddAnyItems(NodeId entry, char close, absl::FunctionRef<NodeId(NodeId from)> add_item);

  NetworkBuilder& builder_;
  std::optional<NodeId> any_object_, any_list_;
  std::optional<CharDfa> any_number_;
  std::map<std::pair<uint32_t, std::optional<uint32_t>>, NodeId> texts_;
  std::map<std::pair<NodeId, size_t>, NodeId> continuations_;  // of the automaton that is being added
};

}  // namespace tdock::inference
