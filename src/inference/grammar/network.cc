#include "inference/grammar/network.h"

#include <algorithm>

namespace tdock::inference {
namespace {

// Sorts what begins at nodes by these, and keeps the order at each. ends[node] is the end of those of a node.
template <class T>
std::vector<T> SortByNode(const std::vector<std::pair<NodeId, T>>& from, size_t nodes, std::vector<uint32_t>& ends) {
  ends.assign(nodes, 0);
  for (const auto& [node, what] : from) ++ends[node];
  uint32_t sum = 0;
  for (uint32_t& end : ends) end = std::exchange(sum, sum + end);  // now the begins
  std::vector<T> sorted(from.size());
  for (const auto& [node, what] : from) sorted[ends[node]++] = what;
  return sorted;
}

}  // namespace

NodeId Network::successor(NodeId node) const {
  const auto found = std::lower_bound(successors_.begin(), successors_.end(), std::pair(node, NodeId{0}));
  return found == successors_.end() || found->first != node ? node : found->second;
}

size_t Network::bytes() const {
  return edges_.size() * sizeof(Edge) + calls_.size() * sizeof(Call) + joined_.size() * sizeof(NodeId) +
         nodes() * (3 * sizeof(uint32_t) + sizeof(uint32_t) + 1);
}

// By levels: at each, all nodes from which kEnd is reached with so many objects and lists in one another.
void Network::FindHeights() {
  const size_t count = limits_.size();
  std::vector<std::pair<NodeId, NodeId>> before;     // the nodes from which a node is reached
  std::vector<std::pair<NodeId, uint32_t>> callers;  // the calls that need a node
  std::vector<NodeId> calling;                       // the node of each call
  for (const auto& [node, successor] : successors_) before.emplace_back(successor, node);
  for (NodeId node = 0; node < count; ++node) {
    for (const Edge& edge : edges(node)) before.emplace_back(edge.to, node);
    for (const NodeId to : joined(node)) before.emplace_back(to, node);
    for (const Call& call : calls(node)) {
      callers.emplace_back(call.entry, static_cast<uint32_t>(calling.size()));
      callers.emplace_back(call.back, static_cast<uint32_t>(calling.size()));
      calling.push_back(node);
    }
  }
  std::vector<uint32_t> before_ends, caller_ends;
  const std::vector<NodeId> before_of = SortByNode(before, count, before_ends);
  const std::vector<uint32_t> callers_of = SortByNode(callers, count, caller_ends);
  heights_.assign(count, kNoHeight);
  std::vector<std::vector<NodeId>> levels(kMaxNested + 1);
  levels[0].push_back(kEnd);
  for (size_t level = 0; level < levels.size(); ++level) {
    for (size_t i = 0; i < levels[level].size(); ++i) {
      const NodeId node = levels[level][i];
      if (heights_[node] != kNoHeight) continue;
      heights_[node] = static_cast<uint8_t>(level);
      enough_room_ = static_cast<uint8_t>(level);
      for (const NodeId from : Part(before_of, before_ends, node)) {
        if (heights_[from] == kNoHeight) levels[level].push_back(from);
      }
      for (const uint32_t number : Part(callers_of, caller_ends, node)) {
        const size_t need = RoomOf(calls_[number]);
        if (need < levels.size() && heights_[calling[number]] == kNoHeight) levels[need].push_back(calling[number]);
      }
    }
  }
  for (const Call& call : calls_) {
    const size_t need = RoomOf(call);
    if (need < levels.size()) enough_room_ = std::max(enough_room_, static_cast<uint8_t>(need));
  }
}

size_t Network::RoomOf(const Call& call) const {
  if (heights_[call.entry] == kNoHeight || heights_[call.back] == kNoHeight) return kNoHeight;
  return std::max<size_t>(heights_[call.entry] + (call.nests ? 1 : 0), heights_[call.back]);
}

void Network::FindClasses() {
  std::array<bool, 257> begins = {};
  begins[0] = true;
  const auto add = [&](uint8_t low, uint8_t high) { begins[low] = begins[size_t{high} + 1] = true; };
  for (const Edge& edge : edges_) {
    add(edge.low, edge.high);
    has_special_ = has_special_ || edge.special;
  }
  for (const Call& call : calls_) add(call.open, call.open);
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) class_bytes_.push_back(static_cast<uint8_t>(byte));
    classes_[byte] = static_cast<uint8_t>(class_bytes_.size() - 1);
  }
}

NodeId NetworkBuilder::NewNode() {
  if (full()) return Network::kEnd;
  limits_.push_back(limit_);
  return static_cast<NodeId>(limits_.size() - 1);
}

void NetworkBuilder::AddEdge(NodeId from, uint8_t low, uint8_t high, NodeId to, bool counts, bool special) {
  if (!full()) edges_.push_back({from, {.to = to, .low = low, .high = high, .counts = counts, .special = special}});
}

void NetworkBuilder::AddCall(NodeId from, char open, NodeId entry, NodeId back) {
  if (full()) return;
  calls_.push_back({from, {.entry = entry, .back = back, .open = static_cast<uint8_t>(open), .nests = open != '"'}});
}

void NetworkBuilder::Join(NodeId from, NodeId to) {
  if (!full()) joined_.emplace_back(from, to);
}

NodeId NetworkBuilder::AddText(NodeId from, absl::string_view text, bool special) {
  for (const char c : text) {
    const NodeId to = NewNode();
    AddEdge(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to, /*counts=*/false, special);
    from = to;
  }
  return from;
}

std::shared_ptr<const Network> NetworkBuilder::Finish(NodeId start) {
  std::shared_ptr<Network> network(new Network);
  network->start_ = start;
  network->limits_ = std::move(limits_);
  const size_t count = network->limits_.size();
  network->edges_ = SortByNode(edges_, count, network->edge_ends_);
  network->calls_ = SortByNode(calls_, count, network->call_ends_);
  network->joined_ = SortByNode(joined_, count, network->joined_ends_);
  network->successors_ = std::move(successors_);
  std::sort(network->successors_.begin(), network->successors_.end());
  network->FindHeights();
  network->FindClasses();
  return network;
}

}  // namespace tdock::inference
