#include "inference/grammar/json_network.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/unicode.h"

namespace tdock::inference {
namespace {

// The letters of short escapes.
constexpr std::array<std::pair<char, char>, 7> kEscapes = {
    {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}};

// The largest characters of one, two, three and four bytes.
constexpr char32_t kLastOfBytes[] = {0x7F, 0x7FF, 0xFFFF, kMaxChar};

bool IsAll(absl::string_view bytes, char byte) {
  return std::all_of(bytes.begin(), bytes.end(), [&](char b) { return b == byte; });
}

}  // namespace

NodeId JsonNetwork::NewEntry() {
  const NetworkBuilder::Limit none(builder_, Network::kNoLimit);
  return builder_.NewNode();
}

NodeId JsonNetwork::AddBlanks(NodeId from) {
  const NodeId behind = builder_.NewNode();
  builder_.Join(from, behind);
  NodeId node = from;
  for (int i = 0; i < 2; ++i) {
    const NodeId next = builder_.NewNode();
    for (const char blank : {' ', '\n', '\r', '\t'}) builder_.AddByte(node, blank, next);
    builder_.Join(next, behind);
    node = next;
  }
  return behind;
}

NodeId JsonNetwork::AddColon(NodeId from) {
  const NodeId colon = builder_.NewNode();
  builder_.AddByte(AddBlanks(from), ':', colon);
  return AddBlanks(colon);
}

NodeId JsonNetwork::AddComma(NodeId from) {
  const NodeId comma = builder_.NewNode();
  builder_.AddByte(from, ',', comma, /*counts=*/true);
  return AddBlanks(comma);
}

void JsonNetwork::AddAnyValue(NodeId from, NodeId to) {
  for (const char* const literal : {"null", "true", "false"}) builder_.Join(builder_.AddText(from, literal), to);
  if (!any_number_) any_number_ = DfaOfNumbers({}).value();
  AddRaw(*any_number_, from, to);
  builder_.AddCall(from, '"', TextEntry(0, std::nullopt), to);
  builder_.AddCall(from, '{', any_object(), to);
  builder_.AddCall(from, '[', any_list(), to);
}

void JsonNetwork::AddLiteral(const nlohmann::ordered_json& value, NodeId from, NodeId to) {
  const std::string spelled = value.is_structured() ? "" : JsonText(value);
  if (!value.is_structured() && !value.is_string()) return builder_.Join(builder_.AddText(from, spelled), to);
  const NodeId entry = NewEntry();
  builder_.AddCall(from, value.is_string() ? '"' : value.is_object() ? '{' : '[', entry, to);
  const NetworkBuilder::Limit none(builder_, Network::kNoLimit);
  if (value.is_string()) {
    const absl::string_view within = absl::string_view(spelled).substr(1, spelled.size() - 2);
    return builder_.AddByte(builder_.AddText(entry, within), '"', Network::kEnd);
  }
  NodeId node = AddBlanks(entry);
  bool is_first = true;
  for (const auto& [name, item] : value.items()) {
    if (!is_first) node = AddComma(node);
    is_first = false;
    if (value.is_object()) node = AddColon(builder_.AddText(node, JsonText(nlohmann::ordered_json(name))));
    const NodeId behind = builder_.NewNode();
    AddLiteral(item, node, behind);
    node = AddBlanks(behind);
  }
  builder_.AddByte(node, value.is_object() ? '}' : ']', Network::kEnd);
}

NodeId JsonNetwork::AddAnyName(NodeId from) {
  const NodeId base = builder_.NewNode(), behind = builder_.NewNode();
  builder_.AddByte(from, '"', base);
  AddTextChars(base, /*counts=*/false);
  builder_.AddByte(base, '"', behind);
  return behind;
}

NodeId JsonNetwork::AddName(const CharDfa& dfa, NodeId from) {
  const NodeId begin = builder_.NewNode(), behind = builder_.NewNode();
  builder_.AddByte(from, '"', begin);
  AddDfa(dfa, Spelling::kQuoted, begin, behind);
  return behind;
}

void JsonNetwork::AddRaw(const CharDfa& dfa, NodeId from, NodeId to) { AddDfa(dfa, Spelling::kRaw, from, to); }

NodeId JsonNetwork::any_object() {
  if (any_object_) return *any_object_;
  any_object_ = NewEntry();
  AddAnyItems(*any_object_, '}', [&](NodeId from) {
    const NodeId behind = builder_.NewNode();
    AddAnyValue(AddColon(AddAnyName(from)), behind);
    return behind;
  });
  return *any_object_;
}

NodeId JsonNetwork::any_list() {
  if (any_list_) return *any_list_;
  any_list_ = NewEntry();
  AddAnyItems(*any_list_, ']', [&](NodeId from) {
    const NodeId behind = builder_.NewNode();
    AddAnyValue(from, behind);
    return behind;
  });
  return *any_list_;
}

void JsonNetwork::AddAnyItems(NodeId entry, char close, absl::FunctionRef<NodeId(NodeId from)> add_item) {
  const NetworkBuilder::Limit none(builder_, Network::kNoLimit);
  const NodeId begin = AddBlanks(entry), item = builder_.NewNode();
  builder_.AddByte(begin, close, Network::kEnd);
  builder_.Join(begin, item);
  const NodeId next = AddBlanks(add_item(item));
  builder_.AddByte(next, close, Network::kEnd);
  builder_.Join(AddComma(next), item);
}

NodeId JsonNetwork::TextEntry(uint32_t min, std::optional<uint32_t> max) {
  const auto [found, is_new] = texts_.try_emplace({min, max}, 0);
  if (is_new) found->second = NewTextEntry(min, max);
  return found->second;
}

// Below the least length a text does not end, and at the largest one it does not go on. Each of the two is a limit of
// nodes, so that a length takes no nodes of its own.
NodeId JsonNetwork::NewTextEntry(uint32_t min, std::optional<uint32_t> max) {
  const NodeId full = NewEntry();
  builder_.AddByte(full, '"', Network::kEnd);
  NodeId entry = full;
  if (max != 0U) {
    const NetworkBuilder::Limit at_max(builder_, max.value_or(Network::kNoLimit));
    entry = builder_.NewNode();
    AddTextChars(entry, /*counts=*/true);
    builder_.AddByte(entry, '"', Network::kEnd);
    if (max) builder_.SetSuccessor(entry, full);
  }
  if (min > 0) {
    const NetworkBuilder::Limit at_min(builder_, min);
    const NodeId begin = builder_.NewNode();
    AddTextChars(begin, /*counts=*/true);
    builder_.SetSuccessor(begin, max == min ? full : entry);
    entry = begin;
  }
  return entry;
}

NodeId JsonNetwork::TextEntry(const CharDfa& dfa) {
  const NetworkBuilder::Limit none(builder_, Network::kNoLimit);
  const NodeId entry = builder_.NewNode();
  AddDfa(dfa, Spelling::kQuoted, entry, Network::kEnd);
  return entry;
}

void JsonNetwork::AddTextChars(NodeId base, bool counts) {
  const auto add = [&](NodeId from, int low, int high, NodeId to) {
    builder_.AddEdge(from, static_cast<uint8_t>(low), static_cast<uint8_t>(high), to, counts && to == base);
  };
  const auto node = [&] { return builder_.NewNode(); };
  add(base, 0x20, 0x21, base);
  add(base, 0x23, 0x5B, base);
  add(base, 0x5D, 0x7F, base);
  // Characters of several bytes, by how many follow.
  const NodeId one = node(), two = node(), three = node();
  add(base, 0xC2, 0xDF, one);
  add(one, 0x80, 0xBF, base);
  const auto add_first = [&](int low, int high, int low_second, int high_second, NodeId then) {
    const NodeId second = node();
    add(base, low, high, second);
    add(second, low_second, high_second, then);
  };
  add_first(0xE0, 0xE0, 0xA0, 0xBF, one);
  add(base, 0xE1, 0xEC, two);
  add_first(0xED, 0xED, 0x80, 0x9F, one);
  add(base, 0xEE, 0xEF, two);
  add(two, 0x80, 0xBF, one);
  add_first(0xF0, 0xF0, 0x90, 0xBF, two);
  add(base, 0xF1, 0xF3, three);
  add(three, 0x80, 0xBF, two);
  add_first(0xF4, 0xF4, 0x80, 0x8F, two);
  const NodeId escape = node(), fourth = node(), third = node(), second = node(), last = node();
  add(base, '\\', '\\', escape);
  for (const char c : absl::string_view("\"\\/bfnrt")) add(escape, c, c, base);
  add(escape, 'u', 'u', fourth);  // four digits to come
  const NodeId maybe_surrogate = node();
  const auto add_digits = [&](NodeId from, absl::string_view ranges, NodeId to) {
    for (size_t i = 0; i < ranges.size(); i += 2) add(from, ranges[i], ranges[i + 1], to);
  };
  add_digits(fourth, "09acefACEF", third);
  add_digits(fourth, "ddDD", maybe_surrogate);
  add_digits(maybe_surrogate, "07", second);
  add_digits(third, "09afAF", second);
  add_digits(second, "09afAF", last);
  add_digits(last, "09afAF", base);
}

void JsonNetwork::AddDfa(const CharDfa& dfa, Spelling spelling, NodeId from, NodeId to) {
  continuations_.clear();
  std::vector<NodeId> nodes;
  for (size_t i = 0; i < dfa.states.size() && !builder_.full(); ++i) nodes.push_back(builder_.NewNode());
  if (builder_.full()) return;
  builder_.Join(from, nodes[0]);
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    std::optional<NodeId> escape;
    for (const CharDfa::Edge& edge : dfa.states[i].edges) {
      if (spelling == Spelling::kRaw) {
        AddChars(edge.low, edge.high, nodes[i], nodes[edge.to]);
      } else {
        AddQuoted(edge.low, edge.high, nodes[i], nodes[edge.to], escape);
      }
    }
    if (!dfa.states[i].accepts) continue;
    if (spelling == Spelling::kRaw) {
      builder_.Join(nodes[i], to);
    } else {
      builder_.AddByte(nodes[i], '"', to);
    }
  }
}

// `escape` is the node behind the backslash that follows `from`.
void JsonNetwork::AddQuoted(char32_t low, char32_t high, NodeId from, NodeId to, std::optional<NodeId>& escape) {
  const auto add_raw = [&](char32_t first, char32_t last) {
    if (std::max(low, first) <= std::min(high, last)) AddChars(std::max(low, first), std::min(high, last), from, to);
  };
  add_raw(0x20, '"' - 1);
  add_raw('"' + 1, '\\' - 1);
  add_raw('\\' + 1, kMaxChar);
  const auto escaped = [&] {
    if (!escape) {
      escape = builder_.NewNode();
      builder_.AddByte(from, '\\', *escape);
    }
    return *escape;
  };
  bool is_short = false;
  for (const auto& [character, letter] : kEscapes) {
    const auto code = static_cast<char32_t>(character);
    if (code < low || code > high) continue;
    builder_.AddByte(escaped(), letter, to);
    is_short = true;
  }
  if (low != high || low >= 0x20 || is_short) return;
  const std::string digits = absl::StrCat("u", absl::Hex(static_cast<uint32_t>(low), absl::kZeroPad4));
  builder_.Join(builder_.AddText(escaped(), digits), to);
}

// As sequences of UTF-8, by how many bytes they have.
void JsonNetwork::AddChars(char32_t low, char32_t high, NodeId from, NodeId to) {
  for (const char32_t last : kLastOfBytes) {
    if (low > high) return;
    if (low > last) continue;
    std::string first_bytes, last_bytes;
    text::AppendUtf8(low, first_bytes);
    text::AppendUtf8(std::min(high, last), last_bytes);
    AddSequences(first_bytes, last_bytes, from, to);
    low = last + 1;
  }
}

// Sequences of the same number of bytes. Those that go on with any bytes share nodes.
void JsonNetwork::AddSequences(absl::string_view low, absl::string_view high, NodeId from, NodeId to) {
  auto begin = static_cast<uint8_t>(low[0]), end = static_cast<uint8_t>(high[0]);
  const size_t rest = low.size() - 1;
  if (rest == 0) return builder_.AddEdge(from, begin, end, to);
  const auto add_part = [&](uint8_t first, absl::string_view low_rest, absl::string_view high_rest) {
    const NodeId behind = builder_.NewNode();
    builder_.AddEdge(from, first, first, behind);
    AddSequences(low_rest, high_rest, behind, to);
  };
  if (begin == end) return add_part(begin, low.substr(1), high.substr(1));
  if (!IsAll(low.substr(1), '\x80')) add_part(begin++, low.substr(1), std::string(rest, '\xBF'));
  if (!IsAll(high.substr(1), '\xBF')) add_part(end--, std::string(rest, '\x80'), high.substr(1));
  if (begin <= end) builder_.AddEdge(from, begin, end, Continuation(rest, to));
}

NodeId JsonNetwork::Continuation(size_t bytes, NodeId to) {
  if (bytes == 0) return to;
  const auto [found, is_new] = continuations_.try_emplace({to, bytes}, 0);
  if (!is_new) return found->second;
  const NodeId node = found->second = builder_.NewNode();
  builder_.AddEdge(node, 0x80, 0xBF, Continuation(bytes - 1, to));
  return node;
}

}  // namespace tdock::inference
