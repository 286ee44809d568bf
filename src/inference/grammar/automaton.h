// The deterministic automaton of a network, whose states are found when they are first needed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "inference/grammar/network.h"

namespace tdock::inference {

using StateId = uint32_t;

// An object, a list or a text that is open, or the outermost text.
struct Frame {
  StateId state = 0;
  uint32_t count = 0;
};

// The place in a text, between two bytes. Belongs to the automaton that made it.
struct Position {
  std::vector<Frame> frames;  // the innermost last
  int room = kMaxNested;      // number of objects and lists that may still be opened in one another
};

// A state is the set of all places of the network at which the bytes of a frame may have led, each with the entry by
// which the frame was called. When a frame closes, those entries whose ends were reached decide where the frame below
// goes on. Each place can be completed to a whole text, so that no text that is taken ends in nothing.
//
// Not thread-safe.
class Automaton {
 public:
  explicit Automaton(std::shared_ptr<const Network> network);

  enum class Did : uint8_t {
    kNothing,  // the byte cannot come
    kMoved,
    kPushed,
    kPopped,
    kLeft  // would pop the only frame of the position, which has not changed; see Leave()
  };
  struct Step {
    Did did = Did::kNothing;
    bool nests = false;   // the frame that was pushed or popped is an object or a list
    uint32_t ending = 0;  // of kLeft
    Frame top, below;     // before the step
  };

  Position Start() const { return {.frames = {{.state = 0, .count = 0}}}; }

  // Goes over a byte of ordinary text, or of the spelling of a special token.
  Step Take(Position& position, uint8_t byte, bool special = false);
  // Takes back the last step that changed the position.
  static void Undo(Position& position, const Step& step);
  // Pops the last frame of a position that has more, as a step on this frame alone said.
  void Leave(Position& position, uint32_t ending);

  // A text that ends here is whole.
  bool may_end(const Position& position) const {
    return position.frames.size() == 1 && states_[position.frames[0].state].accepts;
  }
  // It is, and nothing may follow.
  bool complete(const Position& position) const {
    return may_end(position) && !states_[position.frames[0].state].goes_on;
  }
  // Special tokens may come next.
  bool has_special(const Position& position) const { return states_[position.frames.back().state].has_special; }

  // Number of counts after which the state of the frame changes; nullopt: it does not depend on the count.
  std::optional<uint32_t> CountsLeft(Frame frame) const;
  // Room of a frame at which, and above which, it is the same state.
  int enough_room() const { return network_->enough_room(); }
  int room(Frame frame) const { return states_[frame.state].room; }

  // The same place of a text in this automaton, which is of the same network as the other one.
  Position Adopt(const Automaton& other, const Position& position);

  // Allows work of about so many nanoseconds to find states. Once it is used up, no byte may come.
  void Allow(int64_t work) { work_ = work; }
  bool exhausted() const { return work_ < 0; }

  size_t bytes() const { return bytes_; }  // of memory

 private:
  // A place of the network and the entry of its frame, in the upper half.
  using Item = uint64_t;
  struct State {
    std::vector<Item> kernel;  // sorted; the others are joined to these
    std::vector<Item> items;   // sorted; only those with edges or calls, and kEnd
    uint32_t limit = Network::kNoLimit;
    StateId successor = kUnknown;
    uint8_t room = 0;  // at most enough_room()
    bool nests = false, accepts = false, goes_on = false, has_special = false;
  };
  enum class Kind : uint8_t { kNone, kPlain, kPush, kPop };
  struct Move {
    uint32_t target : 28;  // a state, a number in pushes_ or in endings_
    uint32_t kind : 2;
    uint32_t counts : 1;
    uint32_t special : 1;
  };
  static constexpr StateId kUnknown = (1U << 28) - 1;  // also the target of moves that are not known
  struct Push {
    std::vector<Item> kernel;  // of the frame
    bool nests = false;
    std::vector<StateId> by_room;  // the state, as far as it is known
  };

  static Item ItemOf(NodeId entry, NodeId node) { return uint64_t{entry} << 32 | node; }
  static NodeId EntryOf(Item item) { return static_cast<NodeId>(item >> 32); }
  static NodeId NodeOf(Item item) { return static_cast<NodeId>(item); }

  bool Fits(NodeId node, int room) const { return network_->height(node) <= room; }
  bool Fits(const Network::Call& call, int room) const {
    return Fits(call.back, room) && Fits(call.entry, room - (call.nests ? 1 : 0));
  }
  Move FindMove(StateId state, size_t byte_class);
  Move FindPush(std::vector<Item> kernel, bool nests);
  Move FindPop(std::vector<NodeId> ended);
  StateId StateOf(std::vector<Item> kernel, int room, bool nests);
  void Close(State& state);
  StateId StateOfPush(uint32_t push, int room);
  StateId StateAfter(StateId below, uint32_t ending);
  StateId SuccessorOf(StateId state, uint32_t count);
  void Count(Frame& frame);

  const std::shared_ptr<const Network> network_;
  const size_t classes_;
  std::vector<State> states_;
  std::vector<Move> moves_;  // of each state, by class of bytes
  std::vector<Push> pushes_;
  std::vector<std::vector<NodeId>> endings_;  // sets of entries whose ends were reached, sorted

  absl::flat_hash_map<std::vector<uint64_t>, StateId> state_ids_;  // by room and nests, and the kernel
  absl::flat_hash_map<std::vector<uint64_t>, uint32_t> push_ids_;  // likewise by nests
  absl::flat_hash_map<std::vector<NodeId>, uint32_t> ending_ids_;
  absl::flat_hash_map<uint64_t, StateId> after_;  // by the state below and the ending

  std::vector<uint32_t> seen_;  // for each node the number of the search that has seen it last
  uint32_t searches_ = 0;
  int64_t work_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tdock::inference
