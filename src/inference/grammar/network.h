// Grammars over bytes as networks of nodes, in which objects, lists and texts of JSON are called as functions are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::inference {

using NodeId = uint32_t;

// Maximum number of objects and lists in one another.
inline constexpr int kMaxNested = 32;

// A network has nodes with edges, each of which takes a byte. A call takes the byte that opens an object, a list or a
// text, goes on at the entry of another part of the network, and comes back when that part reaches kEnd:
//
//    node ─{─► entry ─ … ─}─► kEnd        edges that reach kEnd of a called part take the byte that closes it
//      └────────────────────────► back
//
// All ways on which a text can be read open and close at the same bytes. So the automaton (automaton.h) follows them
// all with one stack.
//
// A frame of that stack counts: characters of a text, commas of a list or an object. Where the count reaches the limit
// of a node, the node's successor takes its place. Immutable.
class Network {
 public:
  static constexpr NodeId kEnd = 0;
  static constexpr uint32_t kNoLimit = UINT32_MAX;
  static constexpr uint8_t kNoHeight = UINT8_MAX;

  struct Edge {
    NodeId to;
    uint8_t low, high;  // the bytes that it takes
    bool counts;        // adds one to the count of the frame
    bool special;       // is a part of the spelling of a special token
  };
  struct Call {
    NodeId entry, back;
    uint8_t open;
    bool nests;  // an object or a list
  };

  NodeId start() const { return start_; }
  size_t nodes() const { return heights_.size(); }
  std::span<const Edge> edges(NodeId node) const { return Part(edges_, edge_ends_, node); }
  std::span<const Call> calls(NodeId node) const { return Part(calls_, call_ends_, node); }
  // The nodes that are reached without a byte.
  std::span<const NodeId> joined(NodeId node) const { return Part(joined_, joined_ends_, node); }

  // Number of objects and lists in one another that are needed from this node to kEnd; kNoHeight: it is never reached,
  // or not within kMaxNested.
  uint8_t height(NodeId node) const { return heights_[node]; }
  // Room for objects and lists in one another with which every node is reached and every call is made that can be.
  uint8_t enough_room() const { return enough_room_; }

  bool has_special() const { return has_special_; }  // edges

  uint32_t limit(NodeId node) const { return limits_[node]; }
  NodeId successor(NodeId node) const;  // `node` itself if it has none

  // Bytes of one class are on the same edges.
  uint8_t ClassOf(uint8_t byte) const { return classes_[byte]; }
  size_t classes() const { return class_bytes_.size(); }
  uint8_t ByteOf(size_t byte_class) const { return class_bytes_[byte_class]; }

  size_t bytes() const;  // of memory

 private:
  friend class NetworkBuilder;
  Network() = default;

  template <class T>
  std::span<const T> Part(const std::vector<T>& all, const std::vector<uint32_t>& ends, NodeId node) const {
    const uint32_t begin = node == 0 ? 0 : ends[node - 1];
    return std::span(all).subspan(begin, ends[node] - begin);
  }
  void FindHeights();
  size_t RoomOf(const Call& call) const;  // that it needs
  void FindClasses();

  NodeId start_ = kEnd;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<NodeId> joined_;
  std::vector<uint32_t> edge_ends_, call_ends_, joined_ends_;  // by node
  std::vector<uint8_t> heights_;
  uint8_t enough_room_ = 0;
  bool has_special_ = false;
  std::vector<uint32_t> limits_;
  std::vector<std::pair<NodeId, NodeId>> successors_;  // sorted
  std::array<uint8_t, 256> classes_ = {};
  std::vector<uint8_t> class_bytes_;
};

// Makes a network. Once it is full(), what is added is lost, and Finish() must not be called.
class NetworkBuilder {
 public:
  static constexpr size_t kMaxNodes = size_t{1} << 19, kMaxEdges = size_t{1} << 21;

  NodeId NewNode();
  void AddEdge(NodeId from, uint8_t low, uint8_t high, NodeId to, bool counts = false, bool special = false);
  void AddByte(NodeId from, char byte, NodeId to, bool counts = false) {
    AddEdge(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to, counts);
  }
  void AddCall(NodeId from, char open, NodeId entry, NodeId back);
  // Lets `to` be reached from `from` without a byte. `to` is kEnd only outside of called parts.
  void Join(NodeId from, NodeId to);
  // Adds edges for a text, and returns the node behind it.
  NodeId AddText(NodeId from, absl::string_view text, bool special = false);

  // While it lives, new nodes have a limit.
  class Limit {
   public:
    Limit(NetworkBuilder& builder, uint32_t limit) : builder_(builder), before_(std::exchange(builder.limit_, limit)) {}
    ~Limit() { builder_.limit_ = before_; }
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;

   private:
    NetworkBuilder& builder_;
    const uint32_t before_;
  };
  void SetSuccessor(NodeId node, NodeId successor) { successors_.emplace_back(node, successor); }

  bool full() const {
    return limits_.size() >= kMaxNodes || edges_.size() + joined_.size() + calls_.size() >= kMaxEdges;
  }
  std::shared_ptr<const Network> Finish(NodeId start);

 private:
  uint32_t limit_ = Network::kNoLimit;
  std::vector<uint32_t> limits_ = {Network::kNoLimit};  // of each node; the first is kEnd
  // With the nodes that they begin at.
  std::vector<std::pair<NodeId, Network::Edge>> edges_;
  std::vector<std::pair<NodeId, Network::Call>> calls_;
  std::vector<std::pair<NodeId, NodeId>> joined_;
  std::vector<std::pair<NodeId, NodeId>> successors_;
};

}  // namespace tdock::inference
