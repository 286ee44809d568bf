// Deterministic automata over characters: what patterns, formats, lengths and numbers are compiled to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::inference {

// Ranges of characters: sorted, without overlap, without surrogates. See NormalSet().
struct CharRange {
  char32_t low, high;
};
using CharSet = std::vector<CharRange>;

inline constexpr char32_t kMaxChar = 0x10FFFF;
CharSet NormalSet(CharSet ranges);
CharSet ComplementSet(const CharSet& set);
inline CharSet AllChars() { return ComplementSet({}); }

// Every state but the first is reached and leads to an accepting one.
struct CharDfa {
  struct Edge {
    char32_t low, high;
    uint32_t to;
  };
  struct State {
    std::vector<Edge> edges = {};  // sorted, without overlap
    bool accepts = false;
  };
  std::vector<State> states = {{}};  // the first is where texts begin
  size_t cost = 0;                   // about the number of nodes, edges and states that were gone through to find it

  bool empty() const { return states[0].edges.empty() && !states[0].accepts; }  // accepts nothing
  bool Accepts(absl::string_view text) const;
};

// A nondeterministic automaton, which becomes a CharDfa.
class CharNfa {
 public:
  static constexpr size_t kMaxNodes = 100'000, kMaxEdges = 1'000'000;

  uint32_t NewNode();
  void AddEdge(uint32_t from, const CharSet& set, uint32_t to);
  // Edges without a character: always, where a text begins, and where it ends.
  enum class Free : uint8_t { kAlways, kAtBegin, kAtEnd };
  void AddFree(uint32_t from, uint32_t to, Free when = Free::kAlways) { nodes_[from].free.emplace_back(to, when); }
  // Lets the node `from` take what `dfa` accepts, which must be all that is left of the text, and go to `to`.
  void AddDfa(uint32_t from, const CharDfa& dfa, uint32_t to);

  // Edges that are added once it is full are lost.
  bool full() const { return nodes_.size() >= kMaxNodes || edges_ >= kMaxEdges; }
  static absl::Status TooLarge();  // ResourceExhausted, for one that is full
  // Texts begin at node `begin` and are accepted at `end`; without `at_begin` they are the last part of a text.
  // ResourceExhausted if it needs more than kMaxDfaStates states, or takes long to find.
  absl::StatusOr<CharDfa> Determinise(uint32_t begin, uint32_t end, bool at_begin = true) const;

 private:
  struct Edge {
    char32_t low, high;
    uint32_t to;
  };
  struct Node {
    std::vector<Edge> edges = {};
    std::vector<std::pair<uint32_t, Free>> free = {};
  };
  struct Search {
    std::vector<uint32_t> seen;  // for each node the number of the search that has seen it last
    uint32_t number = 0;
    size_t steps = 0;  // of all searches
  };
  // Returns all nodes that are reached without a character, sorted. `nodes` differ.
  std::vector<uint32_t> Closure(std::vector<uint32_t> nodes, bool at_begin, bool at_end, Search& search) const;

  std::vector<Node> nodes_;
  size_t edges_ = 0;  // with characters
};

// Maximum number of states of an automaton.
inline constexpr size_t kMaxDfaStates = 20'000;

// Accepts what both accept. ResourceExhausted as above.
absl::StatusOr<CharDfa> Intersect(const CharDfa& a, const CharDfa& b);
// Accepts what `dfa` does not.
CharDfa Complement(const CharDfa& dfa);
// Accepts texts of so many characters. `max` is below kMaxDfaStates.
CharDfa DfaOfLengths(size_t min, std::optional<size_t> max);
// Accepts these texts, which are UTF-8. ResourceExhausted as above.
absl::StatusOr<CharDfa> DfaOfTexts(std::span<const std::string> texts);

// In regex.cc.

enum class RegexMatch {
  kWhole,  // the text is what the pattern describes
  kSearch  // a part of it is, as "pattern" of a JSON schema means it
};

// Supports characters, ".", classes, the escapes \d \w \s \D \W \S \t \n \r \f \v \0 \xHH \uHHHH \u{H…}, groups,
// alternatives, repetition (also lazy), ^ and $, and (?=…) and (?!…) in a branch that ends with $ or with the pattern.
// InvalidArgument says at which byte of the pattern there is something else, or that the automaton would be too large.
absl::StatusOr<CharDfa> CompileRegex(absl::string_view pattern, RegexMatch match);

// In numbers.cc.

// Digits before and behind the point, without zeros that change nothing. Zero is "0" and "", and not negative.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0", fraction = {};

  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

// Reads a number of JSON. InvalidArgument for exponents beyond 40 and -40.
absl::StatusOr<Decimal> ReadDecimal(absl::string_view number);
// Below zero, zero or above, as `a` is less than, the same as or more than `b`.
int CompareDecimals(const Decimal& a, const Decimal& b);

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool is_excluded = false;
  };
  std::optional<Bound> min = {}, max = {};
  bool is_integer = false;  // without point and exponent
  int64_t multiple_of = 1;  // of integers; at most kMaxMultiple

  static constexpr int64_t kMaxMultiple = 1000;
};

// Without bounds, numbers are those of JSON with at most 32 digits before and behind the point and 2 in the exponent.
// Within bounds they have no exponent and at most 15 digits behind the point, and fewer beside a bound that is
// excluded, so that no number is rounded to it. Where one bound is missing, they have at most 19 digits before the
// point, or those of the other bound.
absl::StatusOr<CharDfa> DfaOfNumbers(const NumberBounds& bounds);

}  // namespace tdock::inference
