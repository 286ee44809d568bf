#include "inference/grammar/char_dfa.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

constexpr size_t kMaxPatternBytes = size_t{16} << 10;
constexpr int kMaxGroups = 100, kMaxLookaheads = 4;  // in one another; in all
constexpr int64_t kMaxRepeats = 100'000, kMaxRegexSteps = 1'000'000;
constexpr int64_t kUnlimited = -1;

const CharSet& Digits() {
  static const auto* const kSet = new CharSet{{'0', '9'}};
  return *kSet;
}

const CharSet& WordChars() {
  static const auto* const kSet = new CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return *kSet;
}

// White space and line ends of ECMA-262.
const CharSet& WhiteSpace() {
  static const auto* const kSet =
      new CharSet{{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                  {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return *kSet;
}

CharSet AllButLineEnds() { return ComplementSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}); }

struct RegexNode {
  enum class Kind : uint8_t { kSet, kConcat, kAlternate, kRepeat, kBegin, kEnd, kAhead, kBoth };
  Kind kind = Kind::kConcat;
  CharSet set = {};                   // of kSet
  std::vector<size_t> parts = {};     // of kBoth: what is ahead, and the rest of the pattern
  int64_t min = 0, max = kUnlimited;  // of kRepeat
  bool is_negated = false;            // of kAhead and kBoth
  bool at_begin = false;              // likewise: certainly where the text begins
};

using RegexNodes = std::vector<RegexNode>;

class RegexParser {
 public:
  RegexParser(absl::string_view pattern, RegexMatch match) : pattern_(pattern), match_(match) {}

  // The number of the node of the whole.
  absl::StatusOr<size_t> Parse() {
    if (pattern_.size() > kMaxPatternBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pattern has ", pattern_.size(), " bytes; at most ", kMaxPatternBytes, " are allowed"));
    }
    if (const auto wrong = FindInvalidUtf8(pattern_)) {
      at_ = *wrong;
      return Error("it is not UTF-8");
    }
    TDOCK_ASSIGN_OR_RETURN(const size_t whole, ParseAlternatives(/*is_top=*/true, /*at_begin=*/true));
    if (at_ < pattern_.size()) return Error("')' closes no group");
    return whole;
  }

  RegexNodes& nodes() { return nodes_; }

 private:
  using Kind = RegexNode::Kind;

  absl::Status Error(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("at byte ", at_, " of the pattern: ", why));
  }
  absl::string_view rest() const { return pattern_.substr(at_); }
  bool Take(absl::string_view text) {
    if (!absl::StartsWith(rest(), text)) return false;
    at_ += text.size();
    return true;
  }
  size_t Add(RegexNode node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }
  size_t AddSet(CharSet set) { return Add({.kind = Kind::kSet, .set = std::move(set)}); }
  size_t AddAny() {
    const size_t one = AddSet(AllChars());
    return Add({.kind = Kind::kRepeat, .parts = {one}});
  }

  // `at_begin`: certainly where the text begins.
  absl::StatusOr<size_t> ParseAlternatives(bool is_top, bool at_begin) {
    RegexNode node{.kind = Kind::kAlternate};
    do {
      TDOCK_ASSIGN_OR_RETURN(const size_t branch, ParseBranch(is_top, at_begin));
      node.parts.push_back(branch);
    } while (Take("|"));
    return node.parts.size() == 1 ? node.parts[0] : Add(std::move(node));
  }

  absl::StatusOr<size_t> ParseBranch(bool is_top, bool at_begin) {
    const bool searches = is_top && match_ == RegexMatch::kSearch;
    std::vector<size_t> parts;
    // In a search, only a branch that begins with ^ certainly begins where the text does.
    bool is_first = at_begin && (!searches || absl::StartsWith(rest(), "^") || absl::StartsWith(rest(), "\\A"));
    if (searches && !is_first) parts.push_back(AddAny());
    bool looks_ahead = false;
    const bool was_uncertain = is_begin_uncertain_;
    while (at_ < pattern_.size() && rest()[0] != '|' && rest()[0] != ')') {
      TDOCK_ASSIGN_OR_RETURN(const size_t part, ParseRepeated(is_first));
      const Kind kind = nodes_[part].kind;
      looks_ahead = looks_ahead || kind == Kind::kAhead;
      is_begin_uncertain_ = is_begin_uncertain_ || (kind == Kind::kAhead && !is_first);
      is_first = is_first && (kind == Kind::kBegin || kind == Kind::kAhead);
      parts.push_back(part);
    }
    is_begin_uncertain_ = was_uncertain;
    const bool ends = !parts.empty() && nodes_[parts.back()].kind == Kind::kEnd;
    if (looks_ahead && !is_top && !ends) return Error("the branch of a group with (?=…) or (?!…) must end with $");
    if (searches && !ends) parts.push_back(AddAny());
    return Concat(parts);
  }

  // A lookahead and the rest of the branch become one node.
  size_t Concat(std::vector<size_t> parts) {
    for (size_t i = parts.size(); i-- > 0;) {
      if (nodes_[parts[i]].kind != Kind::kAhead) continue;
      const size_t rest =
          Add({.kind = Kind::kConcat, .parts = {parts.begin() + static_cast<std::ptrdiff_t>(i) + 1, parts.end()}});
      RegexNode both = nodes_[parts[i]];
      both.kind = Kind::kBoth;
      both.parts.push_back(rest);
      parts.resize(i);
      parts.push_back(Add(std::move(both)));
    }
    return Add({.kind = Kind::kConcat, .parts = std::move(parts)});
  }

  absl::StatusOr<size_t> ParseRepeated(bool at_begin) {
    const size_t begin = at_;
    const int lookaheads = lookaheads_;
    TDOCK_ASSIGN_OR_RETURN(const size_t atom, ParseAtom(at_begin));
    TDOCK_ASSIGN_OR_RETURN(const auto bounds, ParseQuantifier());
    if (!bounds) return atom;
    const Kind kind = nodes_[atom].kind;
    if (kind == Kind::kBegin || kind == Kind::kEnd || kind == Kind::kAhead) {
      at_ = begin;
      return Error("this takes no characters, and cannot be repeated");
    }
    if (!Take("?") && absl::StartsWith(rest(), "+")) return Error("possessive repetition is not supported");
    if (lookaheads_ != lookaheads) return Error("a group with (?=…) or (?!…) cannot be repeated");
    const size_t after = at_;
    TDOCK_ASSIGN_OR_RETURN(const auto more, ParseQuantifier());
    at_ = after;
    if (more) return Error("there is nothing to repeat");
    return Add({.kind = Kind::kRepeat, .parts = {atom}, .min = bounds->first, .max = bounds->second});
  }

  // Nothing if there is none.
  absl::StatusOr<std::optional<std::pair<int64_t, int64_t>>> ParseQuantifier() {
    using Bounds = std::optional<std::pair<int64_t, int64_t>>;
    if (Take("*")) return Bounds({0, kUnlimited});
    if (Take("+")) return Bounds({1, kUnlimited});
    if (Take("?")) return Bounds({0, 1});
    const absl::string_view text = rest();
    if (!absl::StartsWith(text, "{")) return Bounds();
    const size_t close = text.find('}');
    if (close == absl::string_view::npos) return Bounds();
    const absl::string_view inner = text.substr(1, close - 1);
    if (inner.empty() || inner.find_first_not_of("0123456789,") != absl::string_view::npos) return Bounds();
    const size_t comma = inner.find(',');
    int64_t min = 0, max = kUnlimited;
    const bool is_right = absl::SimpleAtoi(inner.substr(0, comma), &min) &&
                          (comma == absl::string_view::npos || comma + 1 == inner.size() ||
                           absl::SimpleAtoi(inner.substr(comma + 1), &max));
    if (!is_right) return Error("'{' must be as in {2}, {2,} or {2,5}");
    if (comma == absl::string_view::npos) max = min;
    if (max != kUnlimited && max < min) return Error(absl::StrCat("{", inner, "} has a maximum below its minimum"));
    if (std::max(min, max) > kMaxRepeats) {
      return Error(absl::StrCat("{", inner, "} repeats more often than ", kMaxRepeats, " times"));
    }
    at_ += close + 1;
    return Bounds({min, max});
  }

  absl::StatusOr<size_t> ParseAtom(bool at_begin) {
    const char c = rest()[0];
    switch (c) {
      case '(':
        return ParseGroup(at_begin);
      case '[':
        return ParseClass();
      case '.':
        ++at_;
        return AddSet(AllButLineEnds());
      case '^':
        ++at_;
        return AddBegin();
      case '$':
        ++at_;
        return Add({.kind = Kind::kEnd});
      case '*':
      case '+':
      case '?':
        return Error("there is nothing to repeat");
      case '\\':
        if (Take("\\A")) return AddBegin();
        if (Take("\\z") || Take("\\Z")) return Add({.kind = Kind::kEnd});
        break;
      default:
        break;
    }
    TDOCK_ASSIGN_OR_RETURN(CharSet set, ParseChar(/*in_class=*/false));
    return AddSet(std::move(set));
  }

  absl::StatusOr<size_t> AddBegin() {
    if (is_begin_uncertain_)
      return Error("^ is not supported in and behind (?=…) and (?!…) that may stand anywhere in a text");
    return Add({.kind = Kind::kBegin});
  }

  absl::StatusOr<size_t> ParseGroup(bool at_begin) {
    const size_t begin = at_;
    ++at_;
    bool is_ahead = false, is_negated = false;
    if (Take("?")) {
      is_negated = absl::StartsWith(rest(), "!");
      is_ahead = is_negated || absl::StartsWith(rest(), "=");
      const bool is_named =
          absl::StartsWith(rest(), "P<") ||
          (absl::StartsWith(rest(), "<") && !absl::StartsWith(rest(), "<=") && !absl::StartsWith(rest(), "<!"));
      if (is_named) {
        const size_t end = rest().find('>');
        if (end == absl::string_view::npos) return Error("the name of a group has no end");
        at_ += end + 1;
      } else if (is_ahead || absl::StartsWith(rest(), ":")) {
        ++at_;
      } else {
        at_ = begin;
        return Error(absl::StrCat("'", EscapeForMessage(pattern_.substr(begin, 4)),
                                  "' is not supported: groups are (…), (?:…) and (?<name>…)"));
      }
    }
    if (++depth_ > kMaxGroups) return Error(absl::StrCat("more than ", kMaxGroups, " groups are in one another"));
    if (is_ahead && ++lookaheads_ > kMaxLookaheads)
      return Error(absl::StrCat("more than ", kMaxLookaheads, " times (?=…) or (?!…)"));
    const bool was_uncertain = is_begin_uncertain_;
    is_begin_uncertain_ = was_uncertain || (is_ahead && !at_begin);
    TDOCK_ASSIGN_OR_RETURN(const size_t inner, ParseAlternatives(/*is_top=*/false, at_begin));
    is_begin_uncertain_ = was_uncertain;
    --depth_;
    if (!Take(")")) {
      at_ = begin;
      return Error("the group has no end");
    }
    // A node of its own, so that what it ends with is not taken for the end of the branch.
    if (!is_ahead) return Add({.kind = Kind::kConcat, .parts = {inner}});
    return Add({.kind = Kind::kAhead, .parts = {inner}, .is_negated = is_negated, .at_begin = at_begin});
  }

  absl::StatusOr<size_t> ParseClass() {
    const size_t begin = at_;
    ++at_;
    const bool is_negated = Take("^");
    if (absl::StartsWith(rest(), "]")) return Error("a class of no characters: write \\] for the character");
    CharSet set;
    while (!Take("]")) {
      TDOCK_ASSIGN_OR_RETURN(CharSet item, ParseClassItem(begin));
      set.insert(set.end(), item.begin(), item.end());
    }
    set = NormalSet(std::move(set));
    return AddSet(is_negated ? ComplementSet(set) : std::move(set));
  }

  absl::StatusOr<CharSet> ParseClassItem(size_t begin) {
    const auto check_end = [&] {
      if (at_ < pattern_.size()) return absl::OkStatus();
      at_ = begin;
      return Error("the class has no end");
    };
    const auto is_char = [](const CharSet& set) { return set.size() == 1 && set[0].low == set[0].high; };
    TDOCK_RETURN_IF_ERROR(check_end());
    TDOCK_ASSIGN_OR_RETURN(CharSet low, ParseChar(/*in_class=*/true));
    const bool is_range = absl::StartsWith(rest(), "-") && !absl::StartsWith(rest(), "-]");
    if (!is_range || !is_char(low)) return low;
    ++at_;
    TDOCK_RETURN_IF_ERROR(check_end());
    TDOCK_ASSIGN_OR_RETURN(CharSet high, ParseChar(/*in_class=*/true));
    if (!is_char(high) || high[0].high < low[0].low)
      return Error("a range of a class must go from one character to a later one");
    return CharSet{{low[0].low, high[0].high}};
  }

  // A character as it stands, or an escape.
  absl::StatusOr<CharSet> ParseChar(bool in_class) {
    if (Take("\\")) return ParseEscape(in_class);
    const Utf8Char next = *FirstUtf8Char(rest());
    at_ += next.bytes;
    return CharSet{{next.code, next.code}};
  }

  absl::StatusOr<CharSet> ParseEscape(bool in_class) {
    const std::optional<Utf8Char> next = FirstUtf8Char(rest());
    if (!next) return Error("there is nothing behind '\\'");
    const auto one = [](char32_t code) { return CharSet{{code, code}}; };
    const auto is_alnum = [](char32_t code) {
      return code < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(code));
    };
    at_ += next->bytes;
    switch (next->code) {
      case 'd':
        return Digits();
      case 'D':
        return ComplementSet(Digits());
      case 'w':
        return WordChars();
      case 'W':
        return ComplementSet(WordChars());
      case 's':
        return WhiteSpace();
      case 'S':
        return ComplementSet(WhiteSpace());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return ParseHex(2);
      case 'u':
        return ParseHex(4);
      case '0':
        if (at_ >= pattern_.size() || !absl::ascii_isdigit(static_cast<unsigned char>(rest()[0]))) return one(0);
        break;
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        if (!is_alnum(next->code)) return one(next->code);
    }
    at_ -= next->bytes + 1;
    const absl::string_view escaped = rest().substr(1, next->bytes);
    return Error(absl::StrCat("the escape '\\", EscapeForMessage(escaped), "' is not supported"));
  }

  // The digits of \xHH and \uHHHH, or those of \u{H…}.
  absl::StatusOr<CharSet> ParseHex(size_t digits) {
    const bool is_braced = digits == 4 && Take("{");
    const absl::string_view text = rest().substr(0, is_braced ? rest().find('}') : digits);
    const bool is_hex = !text.empty() && text.size() <= 6 && std::all_of(text.begin(), text.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    const bool is_whole = is_braced ? text.size() < rest().size() : text.size() == digits;
    int code = 0;
    if (!is_hex || !is_whole || !absl::SimpleHexAtoi(text, &code)) return Error("here must be hexadecimal digits");
    const auto character = static_cast<char32_t>(code);
    if (character > kMaxChar || (character >= 0xD800 && character <= 0xDFFF)) {
      return Error(absl::StrCat("there is no character ", EscapeForMessage(text)));
    }
    at_ += text.size() + (is_braced ? 1 : 0);
    return CharSet{{character, character}};
  }

  const absl::string_view pattern_;
  const RegexMatch match_;
  RegexNodes nodes_;
  size_t at_ = 0;
  int depth_ = 0, lookaheads_ = 0;
  bool is_begin_uncertain_ = false;
};

class RegexCompiler {
 public:
  explicit RegexCompiler(const RegexNodes& nodes) : nodes_(nodes) {}

  absl::StatusOr<CharDfa> Compile(const std::vector<size_t>& parts, bool at_begin) {
    CharNfa nfa;
    const uint32_t begin = nfa.NewNode();
    uint32_t end = begin;
    for (const size_t part : parts) {
      TDOCK_ASSIGN_OR_RETURN(end, Emit(part, end, nfa));
    }
    // A node of its own, at which nothing goes on.
    const uint32_t last = nfa.NewNode();
    nfa.AddFree(end, last);
    if (nfa.full() || steps_ > kMaxRegexSteps) return CharNfa::TooLarge();
    return nfa.Determinise(begin, last, at_begin);
  }

 private:
  using Kind = RegexNode::Kind;

  // Adds what the node of the pattern takes, from a node of the automaton on. Returns the node behind it.
  absl::StatusOr<uint32_t> Emit(size_t number, uint32_t from, CharNfa& nfa) {
    const RegexNode& node = nodes_[number];
    if (nfa.full() || ++steps_ > kMaxRegexSteps) return from;
    switch (node.kind) {
      case Kind::kConcat:
        for (const size_t part : node.parts) {
          TDOCK_ASSIGN_OR_RETURN(from, Emit(part, from, nfa));
        }
        return from;
      case Kind::kRepeat:
        return EmitRepeat(node, from, nfa);
      case Kind::kBoth:
        return EmitBoth(node, from, nfa);
      default:
        break;
    }
    const uint32_t to = nfa.NewNode();
    switch (node.kind) {
      case Kind::kSet:
        nfa.AddEdge(from, node.set, to);
        break;
      case Kind::kAlternate:
        for (const size_t part : node.parts) {
          const uint32_t begin = nfa.NewNode();
          nfa.AddFree(from, begin);
          TDOCK_ASSIGN_OR_RETURN(const uint32_t end, Emit(part, begin, nfa));
          nfa.AddFree(end, to);
        }
        break;
      default:
        nfa.AddFree(from, to, node.kind == Kind::kBegin ? CharNfa::Free::kAtBegin : CharNfa::Free::kAtEnd);
    }
    return to;
  }

  absl::StatusOr<uint32_t> EmitRepeat(const RegexNode& node, uint32_t from, CharNfa& nfa) {
    const size_t part = node.parts[0];
    const auto is_over = [&] { return nfa.full() || steps_ > kMaxRegexSteps; };
    for (int64_t i = 0; i < node.min && !is_over(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(from, Emit(part, from, nfa));
    }
    const uint32_t end = nfa.NewNode();
    if (node.max == kUnlimited) {
      nfa.AddFree(from, end);
      TDOCK_ASSIGN_OR_RETURN(const uint32_t again, Emit(part, end, nfa));
      nfa.AddFree(again, end);
      return end;
    }
    for (int64_t i = node.min; i < node.max && !is_over(); ++i) {
      nfa.AddFree(from, end);
      TDOCK_ASSIGN_OR_RETURN(from, Emit(part, from, nfa));
    }
    nfa.AddFree(from, end);
    return end;
  }

  absl::StatusOr<uint32_t> EmitBoth(const RegexNode& node, uint32_t from, CharNfa& nfa) {
    RegexCompiler ahead_compiler(nodes_), rest_compiler(nodes_);
    TDOCK_ASSIGN_OR_RETURN(CharDfa ahead, ahead_compiler.CompileAhead(node));
    TDOCK_ASSIGN_OR_RETURN(const CharDfa rest, rest_compiler.Compile({node.parts[1]}, node.at_begin));
    if (node.is_negated) ahead = Complement(ahead);
    TDOCK_ASSIGN_OR_RETURN(const CharDfa both, Intersect(ahead, rest));
    const uint32_t to = nfa.NewNode();
    nfa.AddDfa(from, both, to);
    return to;
  }

  // Texts that begin with what is ahead.
  absl::StatusOr<CharDfa> CompileAhead(const RegexNode& node) {
    CharNfa nfa;
    const uint32_t begin = nfa.NewNode();
    TDOCK_ASSIGN_OR_RETURN(const uint32_t end, Emit(node.parts[0], begin, nfa));
    const uint32_t any = nfa.NewNode();
    nfa.AddFree(end, any);
    nfa.AddEdge(any, AllChars(), any);
    if (nfa.full() || steps_ > kMaxRegexSteps) return CharNfa::TooLarge();
    return nfa.Determinise(begin, any, node.at_begin);
  }

  const RegexNodes& nodes_;
  int64_t steps_ = 0;
};

}  // namespace

absl::StatusOr<CharDfa> CompileRegex(absl::string_view pattern, RegexMatch match) {
  RegexParser parser(pattern, match);
  TDOCK_ASSIGN_OR_RETURN(const size_t whole, parser.Parse());
  const absl::StatusOr<CharDfa> dfa = RegexCompiler(parser.nodes()).Compile({whole}, /*at_begin=*/true);
  if (!dfa.ok()) return absl::InvalidArgumentError(absl::StrCat("the pattern is too large: ", dfa.status().message()));
  return dfa;
}

}  // namespace tdock::inference
