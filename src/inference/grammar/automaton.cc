#include "inference/grammar/automaton.h"

#include <algorithm>

namespace tdock::inference {
namespace {

// About what finding a move and a state takes, and what each edge adds, in nanoseconds. Each byte that is kept counts
// as one more, which bounds the memory, too.
constexpr int64_t kWorkOfMove = 300, kWorkOfEdge = 4;

template <class T>
void SortUnique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace

Automaton::Automaton(std::shared_ptr<const Network> network)
    : network_(std::move(network)), classes_(network_->classes()), seen_(network_->nodes()) {
  bytes_ = seen_.size() * sizeof(uint32_t);
  StateOf({ItemOf(network_->start(), network_->start())}, std::min(kMaxNested, enough_room()), /*nests=*/false);
}

Automaton::Step Automaton::Take(Position& position, uint8_t byte, bool special) {
  Frame& top = position.frames.back();
  const size_t byte_class = network_->ClassOf(byte);
  Move move = moves_[top.state * classes_ + byte_class];
  if (move.target == kUnknown) move = FindMove(top.state, byte_class);
  if (static_cast<Kind>(move.kind) == Kind::kNone || (move.special != 0) != special) return {};
  Step step;
  step.top = top;
  switch (static_cast<Kind>(move.kind)) {
    case Kind::kPush: {
      step.nests = pushes_[move.target].nests;
      const int room = position.room - (step.nests ? 1 : 0);
      const StateId state = StateOfPush(move.target, room);
      if (state == kUnknown) return {};
      step.did = Did::kPushed;
      position.room = room;
      position.frames.push_back({.state = state, .count = 0});
      return step;
    }
    case Kind::kPop:
      step.nests = states_[top.state].nests;
      step.ending = move.target;
      step.did = position.frames.size() == 1 ? Did::kLeft : Did::kPopped;
      if (step.did == Did::kLeft) return step;
      step.below = position.frames[position.frames.size() - 2];
      Leave(position, move.target);
      return step;
    default:
      step.did = Did::kMoved;
      top.state = move.target;
      if (move.counts != 0) Count(top);
      return step;
  }
}

void Automaton::Undo(Position& position, const Step& step) {
  const int nests = step.nests ? 1 : 0;
  switch (step.did) {
    case Did::kMoved:
      position.frames.back() = step.top;
      break;
    case Did::kPushed:
      position.frames.pop_back();
      position.room += nests;
      break;
    case Did::kPopped:
      position.frames.back() = step.below;
      position.frames.push_back(step.top);
      position.room -= nests;
      break;
    default:
      break;
  }
}

void Automaton::Leave(Position& position, uint32_t ending) {
  if (states_[position.frames.back().state].nests) ++position.room;
  position.frames.pop_back();
  Frame& below = position.frames.back();
  below.state = StateAfter(below.state, ending);
}

std::optional<uint32_t> Automaton::CountsLeft(Frame frame) const {
  const uint32_t limit = states_[frame.state].limit;
  if (limit == Network::kNoLimit) return std::nullopt;
  return limit - std::min(limit, frame.count);
}

Position Automaton::Adopt(const Automaton& other, const Position& position) {
  Position adopted = position;
  for (Frame& frame : adopted.frames) {
    const State& state = other.states_[frame.state];
    frame.state = StateOf(state.kernel, state.room, state.nests);
  }
  return adopted;
}

Automaton::Move Automaton::FindMove(StateId state, size_t byte_class) {
  constexpr Move kDead = {.target = 0, .kind = static_cast<uint32_t>(Kind::kNone), .counts = 0, .special = 0};
  work_ -= kWorkOfMove;
  if (exhausted()) return kDead;
  const uint8_t byte = network_->ByteOf(byte_class);
  const int room = states_[state].room;
  const bool nests = states_[state].nests;
  std::vector<Item> plain, called;
  bool counts = false, special = false, calls_nest = false;
  for (const Item item : states_[state].items) {
    const auto edges = network_->edges(NodeOf(item));
    work_ -= kWorkOfEdge * static_cast<int64_t>(1 + edges.size());
    for (const Network::Edge& edge : edges) {
      if (byte < edge.low || byte > edge.high || !Fits(edge.to, room) || (special && !edge.special)) continue;
      if (edge.special && !special) plain.clear();
      special = edge.special;
      counts = counts || edge.counts;
      plain.push_back(ItemOf(EntryOf(item), edge.to));
    }
    for (const Network::Call& call : network_->calls(NodeOf(item))) {
      if (byte != call.open || !Fits(call, room)) continue;
      calls_nest = call.nests;
      called.push_back(ItemOf(call.entry, call.entry));
    }
  }
  Move move = kDead;
  if (!called.empty()) {
    SortUnique(called);
    move = FindPush(std::move(called), calls_nest);
  } else if (!plain.empty()) {
    SortUnique(plain);
    std::vector<NodeId> ended;
    for (const Item item : plain) {
      if (NodeOf(item) == Network::kEnd && EntryOf(item) != network_->start()) ended.push_back(EntryOf(item));
    }
    if (!ended.empty()) {
      move = FindPop(std::move(ended));
    } else {
      move.kind = static_cast<uint32_t>(Kind::kPlain);
      move.target = StateOf(std::move(plain), room, nests);
    }
  }
  move.counts = counts ? 1 : 0;
  move.special = special ? 1 : 0;
  moves_[state * classes_ + byte_class] = move;
  return move;
}

Automaton::Move Automaton::FindPush(std::vector<Item> kernel, bool nests) {
  std::vector<uint64_t> key = kernel;
  key.push_back(nests ? 1 : 0);
  const auto [found, is_new] = push_ids_.try_emplace(std::move(key), static_cast<uint32_t>(pushes_.size()));
  if (is_new) {
    bytes_ +=
        3 * kernel.size() * sizeof(Item) + static_cast<size_t>(enough_room() + 1) * sizeof(StateId) + sizeof(Push);
    pushes_.push_back(
        {std::move(kernel), nests, std::vector<StateId>(static_cast<size_t>(enough_room()) + 1, kUnknown)});
  }
  return {.target = found->second, .kind = static_cast<uint32_t>(Kind::kPush), .counts = 0, .special = 0};
}

Automaton::Move Automaton::FindPop(std::vector<NodeId> ended) {
  SortUnique(ended);
  const auto [found, is_new] = ending_ids_.try_emplace(ended, static_cast<uint32_t>(endings_.size()));
  if (is_new) {
    bytes_ += 2 * ended.size() * sizeof(NodeId) + 2 * sizeof(ended);
    endings_.push_back(std::move(ended));
  }
  return {.target = found->second, .kind = static_cast<uint32_t>(Kind::kPop), .counts = 0, .special = 0};
}

StateId Automaton::StateOf(std::vector<Item> kernel, int room, bool nests) {
  std::vector<uint64_t> key = kernel;
  key.push_back(static_cast<uint64_t>(room) << 1 | (nests ? 1 : 0));
  const auto [found, is_new] = state_ids_.try_emplace(std::move(key), static_cast<StateId>(states_.size()));
  if (!is_new) return found->second;
  const StateId id = found->second;
  State& state = states_.emplace_back();
  state.kernel = std::move(kernel);
  state.room = static_cast<uint8_t>(room);
  state.nests = nests;
  Close(state);
  moves_.resize(states_.size() * classes_,
                {.target = kUnknown, .kind = static_cast<uint32_t>(Kind::kNone), .counts = 0, .special = 0});
  const size_t bytes =
      (3 * state.kernel.size() + state.items.size()) * sizeof(Item) + classes_ * sizeof(Move) + 2 * sizeof(State);
  bytes_ += bytes;
  work_ -= static_cast<int64_t>(bytes);
  return id;
}

void Automaton::Close(State& state) {
  std::vector<NodeId> found;
  for (size_t i = 0; i < state.kernel.size();) {
    const NodeId entry = EntryOf(state.kernel[i]);
    if (++searches_ == 0) {  // all numbers have been used
      std::fill(seen_.begin(), seen_.end(), 0);
      searches_ = 1;
    }
    found.clear();
    const auto add = [&](NodeId node) {
      if (std::exchange(seen_[node], searches_) != searches_) found.push_back(node);
    };
    for (; i < state.kernel.size() && EntryOf(state.kernel[i]) == entry; ++i) add(NodeOf(state.kernel[i]));
    for (size_t next = 0; next < found.size(); ++next) {
      const NodeId node = found[next];
      for (const NodeId to : network_->joined(node)) {
        if (Fits(to, state.room)) add(to);
      }
      state.limit = std::min(state.limit, network_->limit(node));
      const auto edges = network_->edges(node);
      const auto calls = network_->calls(node);
      if (edges.empty() && calls.empty() && node != Network::kEnd) continue;
      state.items.push_back(ItemOf(entry, node));
      state.accepts = state.accepts || (node == Network::kEnd && entry == network_->start());
      state.goes_on =
          state.goes_on ||
          std::any_of(edges.begin(), edges.end(), [&](const auto& edge) { return Fits(edge.to, state.room); }) ||
          std::any_of(calls.begin(), calls.end(), [&](const auto& call) { return Fits(call, state.room); });
      state.has_special =
          state.has_special || (network_->has_special() &&
                                std::any_of(edges.begin(), edges.end(), [](const auto& edge) { return edge.special; }));
    }
    work_ -= kWorkOfEdge * static_cast<int64_t>(found.size());
  }
  std::sort(state.items.begin(), state.items.end());
}

StateId Automaton::StateOfPush(uint32_t push, int room) {
  const int known_room = std::min(room, enough_room());
  if (known_room < 0) return kUnknown;
  const auto place = static_cast<size_t>(known_room);
  if (pushes_[push].by_room[place] != kUnknown) return pushes_[push].by_room[place];
  std::vector<Item> kernel;
  for (const Item item : pushes_[push].kernel) {
    if (Fits(NodeOf(item), known_room)) kernel.push_back(item);
  }
  if (kernel.empty()) return kUnknown;
  return pushes_[push].by_room[place] = StateOf(std::move(kernel), known_room, pushes_[push].nests);
}

StateId Automaton::StateAfter(StateId below, uint32_t ending) {
  const auto [found, is_new] = after_.try_emplace(uint64_t{below} << 32 | ending, kUnknown);
  if (!is_new) return found->second;
  const std::vector<NodeId>& ended = endings_[ending];
  const int room = states_[below].room;
  std::vector<Item> kernel;
  for (const Item item : states_[below].items) {
    const auto calls = network_->calls(NodeOf(item));
    work_ -= kWorkOfEdge * static_cast<int64_t>(1 + calls.size());
    for (const Network::Call& call : calls) {
      const bool is_back = Fits(call, room) && std::binary_search(ended.begin(), ended.end(), call.entry);
      if (is_back) kernel.push_back(ItemOf(EntryOf(item), call.back));
    }
  }
  SortUnique(kernel);
  bytes_ += 4 * sizeof(uint64_t);
  return found->second = StateOf(std::move(kernel), room, states_[below].nests);
}

StateId Automaton::SuccessorOf(StateId state, uint32_t count) {
  if (states_[state].successor != kUnknown) return states_[state].successor;
  std::vector<Item> kernel;
  for (const Item item : states_[state].kernel) {
    const NodeId node = NodeOf(item);
    kernel.push_back(network_->limit(node) == count ? ItemOf(EntryOf(item), network_->successor(node)) : item);
  }
  SortUnique(kernel);
  const StateId successor = StateOf(std::move(kernel), states_[state].room, states_[state].nests);
  return states_[state].successor = successor;
}

void Automaton::Count(Frame& frame) {
  if (frame.count != UINT32_MAX) ++frame.count;
  if (frame.count == states_[frame.state].limit) frame.state = SuccessorOf(frame.state, frame.count);
}

}  // namespace tdock::inference
