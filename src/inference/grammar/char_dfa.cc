#include "inference/grammar/char_dfa.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
// Maximum number of nodes and edges of all states together, while they are found. What is gone through on the way, and
// not kept, counts for less.
constexpr size_t kMaxDfaParts = 1'000'000, kStepsOfPart = 8;

absl::Status TooManyStates() {
  return absl::ResourceExhaustedError(absl::StrCat("it needs an automaton of more than ", kMaxDfaStates,
                                                   " states, or of ", kMaxDfaParts, " nodes and edges in them"));
}

// Removes states that are not reached or lead to no accepting one, and numbers the others anew.
CharDfa Trimmed(const CharDfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<std::vector<uint32_t>> before(count);
  for (uint32_t state = 0; state < count; ++state) {
    for (const CharDfa::Edge& edge : dfa.states[state].edges) before[edge.to].push_back(state);
  }
  std::vector<bool> is_useful(count);
  std::vector<uint32_t> found;
  const auto add = [&](uint32_t state) {
    if (!is_useful[state]) found.push_back(state);
    is_useful[state] = true;
  };
  for (uint32_t state = 0; state < count; ++state) {
    if (dfa.states[state].accepts) add(state);
  }
  for (size_t next = 0; next < found.size(); ++next) {
    const uint32_t state = found[next];
    for (const uint32_t from : before[state]) add(from);
  }
  constexpr uint32_t kNoNumber = UINT32_MAX;
  std::vector<uint32_t> numbers(count, kNoNumber), order = {0};
  numbers[0] = 0;
  CharDfa trimmed;
  trimmed.cost = dfa.cost + count;
  for (size_t next = 0; next < order.size(); ++next) {
    CharDfa::State state{.edges = {}, .accepts = dfa.states[order[next]].accepts};
    for (CharDfa::Edge edge : dfa.states[order[next]].edges) {
      if (!is_useful[edge.to]) continue;
      if (numbers[edge.to] == kNoNumber) {
        numbers[edge.to] = static_cast<uint32_t>(order.size());
        order.push_back(edge.to);
        trimmed.states.emplace_back();
      }
      edge.to = numbers[edge.to];
      const bool joins =
          !state.edges.empty() && state.edges.back().to == edge.to && state.edges.back().high + 1 == edge.low;
      if (joins) {
        state.edges.back().high = edge.high;
      } else {
        state.edges.push_back(edge);
      }
    }
    trimmed.states[next] = std::move(state);
  }
  return trimmed;
}

// Calls use(low, high, targets) for the ranges of characters with the same targets, in their order, until it returns
// false; then this does, too. `edges` may overlap. Adds the number of edges of all ranges to `steps`.
template <class Edge, class Use>
bool ForRanges(std::vector<Edge>& edges, size_t& steps, const Use& use) {
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.low < b.low; });
  std::vector<char32_t> cuts;
  for (const Edge& edge : edges) {
    cuts.push_back(edge.low);
    cuts.push_back(edge.high + 1);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Edge> open;
  std::vector<uint32_t> targets;
  size_t next = 0;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    steps += open.size();
    std::erase_if(open, [&](const Edge& edge) { return edge.high < cuts[i]; });
    for (; next < edges.size() && edges[next].low == cuts[i]; ++next) open.push_back(edges[next]);
    if (open.empty()) continue;
    targets.clear();
    for (const Edge& edge : open) targets.push_back(edge.to);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    if (!use(cuts[i], cuts[i + 1] - 1, targets)) return false;
  }
  return true;
}

}  // namespace

CharSet NormalSet(CharSet ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const CharRange& a, const CharRange& b) { return a.low < b.low; });
  CharSet merged;
  for (const CharRange& range : ranges) {
    if (!merged.empty() && range.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, range.high);
    } else {
      merged.push_back(range);
    }
  }
  CharSet normal;
  for (const CharRange& range : merged) {
    if (range.low < kFirstSurrogate) normal.push_back({range.low, std::min<char32_t>(range.high, kFirstSurrogate - 1)});
    if (range.high > kLastSurrogate) normal.push_back({std::max<char32_t>(range.low, kLastSurrogate + 1), range.high});
  }
  return normal;
}

CharSet ComplementSet(const CharSet& set) {
  CharSet complement;
  char32_t next = 0;
  for (const CharRange& range : set) {
    if (range.low > next) complement.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kMaxChar) complement.push_back({next, kMaxChar});
  return NormalSet(std::move(complement));
}

bool CharDfa::Accepts(absl::string_view text) const {
  const State* state = &states[0];
  while (!text.empty()) {
    const std::optional<Utf8Char> next = FirstUtf8Char(text);
    if (!next) return false;
    text.remove_prefix(next->bytes);
    const auto found = std::find_if(state->edges.begin(), state->edges.end(), [&](const Edge& edge) {
      return edge.low <= next->code && next->code <= edge.high;
    });
    if (found == state->edges.end()) return false;
    state = &states[found->to];
  }
  return state->accepts;
}

uint32_t CharNfa::NewNode() {
  if (full()) return 0;
  nodes_.emplace_back();
  return static_cast<uint32_t>(nodes_.size() - 1);
}

void CharNfa::AddEdge(uint32_t from, const CharSet& set, uint32_t to) {
  if (full()) return;
  edges_ += set.size();
  for (const CharRange& range : set) nodes_[from].edges.push_back({range.low, range.high, to});
}

void CharNfa::AddDfa(uint32_t from, const CharDfa& dfa, uint32_t to) {
  std::vector<uint32_t> nodes;
  for (size_t i = 0; i < dfa.states.size(); ++i) nodes.push_back(NewNode());
  if (full()) return;
  AddFree(from, nodes[0]);
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    edges_ += dfa.states[i].edges.size();
    for (const CharDfa::Edge& edge : dfa.states[i].edges) {
      nodes_[nodes[i]].edges.push_back({edge.low, edge.high, nodes[edge.to]});
    }
    if (dfa.states[i].accepts) AddFree(nodes[i], to, Free::kAtEnd);
  }
}

absl::Status CharNfa::TooLarge() {
  return absl::ResourceExhaustedError(
      absl::StrCat("its automaton would have more than ", kMaxNodes, " nodes or ", kMaxEdges, " edges"));
}

std::vector<uint32_t> CharNfa::Closure(std::vector<uint32_t> nodes, bool at_begin, bool at_end, Search& search) const {
  ++search.number;
  for (const uint32_t node : nodes) search.seen[node] = search.number;
  for (size_t next = 0; next < nodes.size(); ++next) {
    const auto& free = nodes_[nodes[next]].free;
    search.steps += 1 + free.size();
    for (const auto& [to, when] : free) {
      const bool holds =
          when == Free::kAlways || (when == Free::kAtBegin && at_begin) || (when == Free::kAtEnd && at_end);
      if (holds && std::exchange(search.seen[to], search.number) != search.number) nodes.push_back(to);
    }
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

absl::StatusOr<CharDfa> CharNfa::Determinise(uint32_t begin, uint32_t end, bool at_begin) const {
  CharDfa dfa;
  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> ids;
  std::vector<std::vector<uint32_t>> closures;
  Search search{.seen = std::vector<uint32_t>(nodes_.size())};
  size_t parts = 0;
  const auto accepts = [&](const std::vector<uint32_t>& closure, bool is_first) {
    const std::vector<uint32_t> at_end = Closure(closure, is_first && at_begin, /*at_end=*/true, search);
    return std::binary_search(at_end.begin(), at_end.end(), end);
  };
  closures.push_back(Closure({begin}, at_begin, /*at_end=*/false, search));
  dfa.states[0].accepts = accepts(closures[0], /*is_first=*/true);
  std::vector<Edge> edges;
  for (uint32_t state = 0; state < closures.size(); ++state) {
    edges.clear();
    for (const uint32_t node : closures[state]) {
      edges.insert(edges.end(), nodes_[node].edges.begin(), nodes_[node].edges.end());
    }
    parts += edges.size();
    const auto add = [&](char32_t low, char32_t high, const std::vector<uint32_t>& targets) {
      std::vector<uint32_t> closure = Closure(targets, /*at_begin=*/false, /*at_end=*/false, search);
      const auto [found, is_new] = ids.try_emplace(closure, static_cast<uint32_t>(closures.size()));
      dfa.states[state].edges.push_back({low, high, found->second});
      if (is_new) {
        parts += closure.size();
        dfa.states.push_back({.edges = {}, .accepts = accepts(closure, /*is_first=*/false)});
        closures.push_back(std::move(closure));
      }
      dfa.cost = parts + search.steps / kStepsOfPart;
      return closures.size() <= kMaxDfaStates && dfa.cost < kMaxDfaParts;
    };
    if (!ForRanges(edges, search.steps, add)) return TooManyStates();
  }
  return Trimmed(dfa);
}

absl::StatusOr<CharDfa> Intersect(const CharDfa& a, const CharDfa& b) {
  CharDfa both;
  size_t parts = 0, steps = 0;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> ids = {{{0, 0}, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> pairs = {{0, 0}};
  for (uint32_t state = 0; state < pairs.size(); ++state) {
    const CharDfa::State& of_a = a.states[pairs[state].first];
    const CharDfa::State& of_b = b.states[pairs[state].second];
    both.states[state].accepts = of_a.accepts && of_b.accepts;
    for (size_t i = 0, j = 0; i < of_a.edges.size() && j < of_b.edges.size();) {
      const CharDfa::Edge &edge_a = of_a.edges[i], &edge_b = of_b.edges[j];
      const char32_t low = std::max(edge_a.low, edge_b.low), high = std::min(edge_a.high, edge_b.high);
      if (low <= high) {
        const std::pair pair(edge_a.to, edge_b.to);
        const auto [found, is_new] = ids.try_emplace(pair, static_cast<uint32_t>(pairs.size()));
        both.states[state].edges.push_back({low, high, found->second});
        if (is_new) {
          if (pairs.size() >= kMaxDfaStates) return TooManyStates();
          pairs.push_back(pair);
          both.states.emplace_back();
        }
      }
      edge_a.high < edge_b.high ? ++i : ++j;
    }
    parts += 1 + both.states[state].edges.size();
    steps += of_a.edges.size() + of_b.edges.size();
    if (parts + steps / kStepsOfPart > kMaxDfaParts) return TooManyStates();
  }
  both.cost = a.cost + b.cost + parts + steps / kStepsOfPart;
  return Trimmed(both);
}

CharDfa Complement(const CharDfa& dfa) {
  CharDfa complement = dfa;
  const auto rest = static_cast<uint32_t>(dfa.states.size());  // what `dfa` has left
  complement.states.push_back({.edges = {}, .accepts = false});
  for (CharDfa::State& state : complement.states) {
    CharSet taken;
    for (const CharDfa::Edge& edge : state.edges) taken.push_back({edge.low, edge.high});
    for (const CharRange& range : ComplementSet(NormalSet(std::move(taken)))) {
      state.edges.push_back({range.low, range.high, rest});
    }
    std::sort(state.edges.begin(), state.edges.end(),
              [](const CharDfa::Edge& a, const CharDfa::Edge& b) { return a.low < b.low; });
    state.accepts = !state.accepts;
  }
  return Trimmed(complement);
}

CharDfa DfaOfLengths(size_t min, std::optional<size_t> max) {
  CharDfa dfa;
  const size_t last = max.value_or(min);
  dfa.states.resize(last + 1);
  for (size_t length = 0; length <= last; ++length) {
    CharDfa::State& state = dfa.states[length];
    state.accepts = length >= min;
    if (length == last && max) break;
    for (const CharRange& range : AllChars()) {
      state.edges.push_back({range.low, range.high, static_cast<uint32_t>(std::min(length + 1, last))});
    }
  }
  return dfa;
}

absl::StatusOr<CharDfa> DfaOfTexts(std::span<const std::string> texts) {
  CharDfa dfa;
  for (absl::string_view text : texts) {
    uint32_t state = 0;
    for (std::optional<Utf8Char> next; (next = FirstUtf8Char(text)); text.remove_prefix(next->bytes)) {
      std::vector<CharDfa::Edge>& edges = dfa.states[state].edges;
      const auto place = std::lower_bound(edges.begin(), edges.end(), next->code,
                                          [](const CharDfa::Edge& edge, char32_t code) { return edge.low < code; });
      if (place != edges.end() && place->low == next->code) {
        state = place->to;
        continue;
      }
      if (dfa.states.size() >= kMaxDfaStates) return TooManyStates();
      state = static_cast<uint32_t>(dfa.states.size());
      edges.insert(place, {next->code, next->code, state});
      dfa.states.emplace_back();  // ends `edges` and `place`
    }
    dfa.states[state].accepts = true;
  }
  return dfa;
}

}  // namespace tdock::inference
